// y[t, head] = x[t, head], columns (i, i + D_HEAD / 2) rotated by the angle (pos + t / BATCH) * frequency[i].
// With MOMENTS, x is the partial sums of one row before its norm, which are finished here. With PLACES, it is those of
// several rows: each row BATCH_ROW is written to texel row (row + BATCH_ROW) and rotated by its own position.
#ifdef MOMENTS
#include "folded_norm.glsl"
#include "partial_sums.glsl"
#endif

#ifdef FREQUENCIES
const float FREQUENCY[D_HEAD / 2] = float[](FREQUENCIES);

// (cosine, sine) of a large angle: n * 6.28125 is exact, so that subtracting n full turns loses no precision.
vec2 turn(float angle) {
  float n = floor(angle * 0.15915494309 + 0.5);
  float r = (angle - n * 6.28125) - n * 0.00193530717958648;
  return vec2(cos(r), sin(r));
}
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#ifdef MOMENTS
  vec2 scale = mean_and_scale();
#define VALUE(r, c4) normed(sum_of_partial_sums(c4), c4, scale)
#else
#define VALUE(r, c4) x_at(r, c4)
#endif
#ifdef PLACES_W
#define POSITION(r) int(PLACES(0, BATCH_ROW, 0).x)
#define SOURCE(r) (r)
#elif defined(FROM_ZERO)
#define POSITION(r) ((r) / BATCH)
#define SOURCE(r) (r)
#else
#define POSITION(r) (r)
#define SOURCE(r) ((r) - pos)
#endif
#define D4 ((D_HEAD + 3) / 4)
#define HALF (D_HEAD / 2)
#ifdef FREQUENCIES
#define ROTATE(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x, head = c4 / D4 * D4, first = c4 % D4 * 4; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      vec4 own = VALUE(SOURCE(r), c4), other; \
      if (HALF % 4 == 0) { \
        other = VALUE(SOURCE(r), first < HALF ? c4 + HALF / 4 : c4 - HALF / 4); \
      } else { \
        for (int k = 0; k < 4; k++) { \
          int c = first + k < HALF ? first + k + HALF : max(first + k - HALF, 0); \
          other[k] = VALUE(SOURCE(r), head + c / 4)[c % 4]; \
        } \
      } \
      for (int k = 0; k < 4; k++) { \
        int c = first + k; \
        if (c < D_HEAD) { \
          vec2 a = turn(float(POSITION(r)) * FREQUENCY[c < HALF ? c : c - HALF]); \
          v[n][k] = own[k] * a.x + (c < HALF ? -other[k] : other[k]) * a.y; \
        } \
      } \
    } \
  }
#else
#define ROTATE(n, i, j) { \
    int r = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < Y_COLS ? VALUE(SOURCE(r), c4) : vec4(0.0); \
  }
#endif
  Y_TILES(ROTATE)
  STORE_Y(v)
}
