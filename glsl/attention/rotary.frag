// Rotates each head by angles that depend on its position (RoPE). The heads of x begin at texel column FIRST. In a
// head, each pair of columns (i, i + ROTATED / 2) is rotated by the angle position * frequency[i] and multiplied by
// FACTOR; columns from ROTATED on are copied. Without FREQUENCIES, all columns are copied. Row t of x has position pos
// + t and is written to row pos + t of y. With FROM_ZERO, the rows of BATCH sequences alternate, and row t of both x
// and y has position t / BATCH.
// With SCALES, each head is normalised first: multiplied by its scale (or by one scale of all heads) and by
// (GAIN + GAIN_OFFSET).
// With PARTIAL_SUMS, the input holds partial sums of x, which this pass adds up: those of one row, or, with PLACES, of
// several rows.
// With PLACES, x has a row for each of several texts: row i of x is written to row (`row` + i) of y and rotated by the
// position PLACES[i].
// With OTHER, the pass also copies the same number of other heads (the values) to OTHER without rotation. The other
// heads come from the product that holds x, beginning at texel column OTHER_FIRST, or from the separate product
// SECOND_SUMS.
// With INTO, y is wider than x: x is written to the columns from texel INTO on, and the other columns are 0.
#ifdef PARTIAL_SUMS_W
#include "finished_sum.glsl"
#endif
#ifndef FIRST
#define FIRST 0
#endif
#ifndef ROTATED
#define ROTATED D_HEAD
#endif
#define D4 ((D_HEAD + 3) / 4)
#define HALF (ROTATED / 2)

#ifdef FREQUENCIES
const float FREQUENCY[HALF] = float[](FREQUENCIES);

#include "circle.glsl"

#ifndef FACTOR
#define FACTOR 1.0
#endif

// Computes the cosines and sines, times FACTOR, of the angles by which four columns of a head, from column `first` on,
// are rotated at a position. In the first half of the rotated columns, sines are negated.
void cos_sin(int position, int first, out vec4 cosines, out vec4 sines) {
  for (int k = 0; k < 4; k++) {
    int c = min(first + k, ROTATED - 1);
    vec2 a = FACTOR * on_circle(float(position) * FREQUENCY[c < HALF ? c : c - HALF]);
    cosines[k] = a.x;
    sines[k] = c < HALF ? -a.y : a.y;
  }
}
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#ifdef PARTIAL_SUMS_W
  vec2 scale = mean_and_scale();
#define STORED(r, c4) finished_sum(FIRST + (c4), scale)
#else
#define STORED(r, c4) x_at(r, FIRST + (c4))
#endif
#ifdef SCALES_W
#ifdef GAIN_PER_HEAD
#define OWN_GAIN(c4) gain_at(0, (c4) % D4)
#define SCALE_OF(r, c4) scales_at(r, (c4) / D4).x
#else
#define OWN_GAIN(c4) gain_at(0, c4)
#define SCALE_OF(r, c4) scales_at(r, 0).x
#endif
#ifdef GAIN_OFFSET
#define VALUE(r, c4) (STORED(r, c4) * SCALE_OF(r, c4) * (OWN_GAIN(c4) + GAIN_OFFSET))
#else
#define VALUE(r, c4) (STORED(r, c4) * SCALE_OF(r, c4) * OWN_GAIN(c4))
#endif
#else
#define VALUE(r, c4) STORED(r, c4)
#endif
#ifdef PLACES_W
#define POSITION(r) int(PLACES(0, (r) - row, 0).x)
#define SOURCE(r) ((r) - row)
#elif defined(FROM_ZERO)
#define POSITION(r) ((r) / BATCH)
#define SOURCE(r) (r)
#else
#define POSITION(r) (r)
#define SOURCE(r) ((r) - pos)
#endif
#ifdef INTO
#define COLUMN(j) (j * Y_W + p.x - INTO)
#define INSIDE(c4) (c4 >= 0 && 4 * c4 < X_COLS)
#else
#define COLUMN(j) (j * Y_W + p.x)
#define INSIDE(c4) (4 * c4 < Y_COLS)
#endif
#ifdef FREQUENCIES
  vec4 cosines, sines;
#if Y_TR == 1 && Y_W % D4 == 0 && !defined(INTO)
  // All columns of this fragment have the same place in their heads, so their angles are equal.
  cos_sin(POSITION(min(p.y, Y_ROWS - 1)), p.x % D4 * 4, cosines, sines);
#define ANGLES_OF_TILE(position, first)
#else
#define ANGLES_OF_TILE(position, first) cos_sin(position, first, cosines, sines);
#endif
#define ROTATE(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = COLUMN(j), head = c4 / D4 * D4, first = c4 % D4 * 4; \
    v[n] = vec4(0.0); \
    if (INSIDE(c4)) { \
      vec4 own = VALUE(SOURCE(r), c4), other = vec4(0.0); \
      if (HALF % 4 == 0) { \
        if (first < ROTATED) other = VALUE(SOURCE(r), first < HALF ? c4 + HALF / 4 : c4 - HALF / 4); \
      } else { \
        for (int k = 0; k < 4; k++) { \
          int c = first + k < HALF ? first + k + HALF : max(first + k - HALF, 0); \
          other[k] = VALUE(SOURCE(r), head + c / 4)[c % 4]; \
        } \
      } \
      ANGLES_OF_TILE(POSITION(r), first) \
      for (int k = 0; k < 4; k++) { \
        int c = first + k; \
        if (c < D_HEAD) v[n][k] = c < ROTATED ? own[k] * cosines[k] + other[k] * sines[k] : own[k]; \
      } \
    } \
  }
#else
#define ROTATE(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = COLUMN(j); \
    v[n] = INSIDE(c4) ? VALUE(SOURCE(r), c4) : vec4(0.0); \
  }
#endif
  Y_TILES(ROTATE)
  STORE_Y(v)
#ifdef OTHER_N
  vec4 other[1];
#ifdef SECOND_SUMS_W
  other[0] = second_sum(p.x, scale);
#else
  other[0] = finished_sum(OTHER_FIRST + p.x, scale);
#endif
  STORE_OTHER(other)
#endif
}
