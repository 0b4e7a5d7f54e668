// Multiplies one row x by a matrix w. K is split into slices of SLICE texels, and each fragment computes the partial
// sums of one slice: y = x[slice of K] w[slice of K, some columns].
// Of each row of w, a fragment reads CONTIGUOUS neighbouring texels or, if CONTIGUOUS is 0, Y_N / W_SHARED texels at
// distances of STRIDE. The pixels of a slice are in blocks of 4 x BY, and the pixels of a block read neighbouring
// texels of each row of w. A driver runs the pixels of a block together, so they read contiguous memory.
// In a blended pass (`Recorder.add_up`), the device draws several triangles (`slice_of_k` is the triangle's number) and
// adds up their outputs. In each triangle, BANDS pixels compute the same columns of y for different slices of K; BAND
// is the number of this pixel among them. With INTERLEAVED, a pixel multiplies every BANDS-th texel of the triangle's
// range of K, so that the rows of w that the BANDS pixels read at the same time are close in memory.
// x is a tensor, or this shader computes it. With KEYS or RANGE_KEYS, x is the output of attention (`attended.glsl`).
// With X_STRIDE, x is the residual stream times the GAIN of a norm. With PARTIAL_SUMS (and SECOND_SUMS), x is the
// hidden layer of an MLP.
// With PARTS, PARTS fragments divide the column tiles in a texel of w: each fragment computes every PARTS-th column
// tile. ADDED is a bias.
#if defined(KEYS) || defined(RANGE_KEYS)
#include "attended.glsl"
#define FACTOR(k4) attended(k4)
#elif defined(X_STRIDE)
#include "stream.glsl"
#ifdef GAIN_OFFSET
#define FACTOR(k4) stream_at(k4) * (gain_at(0, k4) + GAIN_OFFSET)
#else
#define FACTOR(k4) stream_at(k4) * gain_at(0, k4)
#endif
#elif defined(PARTIAL_SUMS_W)
#include "activation.glsl"
#include "finished_sum.glsl"
#ifdef SECOND_SUMS_W
#define FACTOR(k4) act(finished_sum(k4, row_norm)) * second_sum(k4, row_norm)
#else
#define FACTOR(k4) act(finished_sum(k4, row_norm))
#endif
#else
#define FACTOR(k4) x_at(0, k4)
#ifdef WHOLE_GROUPS
#if X_SHARED == 1 && X_W % (W_GROUP / 4) == 0
#define X_OF_GROUP  // the columns of x that match a group of rows of w are all in one tile of x
#endif
#endif
#endif
// Number of texels of a row of w that a fragment reads. The fragment may use only some of the column tiles in a texel.
#define COLUMNS ((Y_N + W_SHARED - 1) / W_SHARED)
#ifdef PARTS
#define TILE_OF(n) ((n) * PARTS + part)
#else
#define TILE_OF(n) ((Y_J + n) % W_SHARED)
#endif

// MULTIPLY multiplies 4 * AT_ONCE columns of x, from texel k4 on, by the matching rows of w; texels of x after `last`
// count as zero. The macro `sums` (ADD or ADD_TO_GROUP) adds up the products. All fetches precede the multiplications:
// on software GL, a fetch is a call that spills the registers; a GPU waits once for all the fetches. Texels of w are
// fetched row by row. This is twice as fast on software GL as column by column, since the texels of a row are in one
// memory page and those of a column are not.
#if AT_ONCE == 1 || (defined(PIXEL) && K4 % SLICE == 0 && SLICE % AT_ONCE == 0)
#define WHOLE true
#define LIMITED(k, last) (k)
#else
#define WHOLE false
#define LIMITED(k, last) min(k, last)
#endif
#define MULTIPLY(sums, k4, last) { \
    vec4 xs[AT_ONCE]; \
    W_TEXEL w[4 * COLUMNS * AT_ONCE]; \
    for (int m = 0; m < AT_ONCE; m++) { \
      int k = LIMITED((k4) + m, last), tile = W_TR == 1 ? 0 : 4 * k / W_H, row = W_Y(4 * k - tile * W_H); \
      xs[m] = WHOLE || (k4) + m <= last ? FACTOR(k) : vec4(0.0); \
      for (int o = 0; o < 4; o++) { \
        for (int n = 0; n < COLUMNS; n++) { \
          w[4 * (COLUMNS * m + n) + o] = W(tile * W_ACROSS + at[n].z, at[n].y + row + o, at[n].x); \
        } \
      } \
    } \
    for (int m = 0; m < AT_ONCE; m++) { \
      vec4 x = xs[m]; \
      Y_TILES(sums) \
      ADD_INPUTS(x) \
    } \
  }
#ifdef W_MINIMUM
#define ADD_INPUTS(x) inputs += dot(x, vec4(1.0));
#else
#define ADD_INPUTS(x)
#endif
#ifdef W_GROUP
#define ROW(n, o) W_PLACED(w[4 * (COLUMNS * m + n / W_SHARED) + o], TILE_OF(n))
#else
#define ROW(n, o) W_DECODE(w[4 * (COLUMNS * m + n / W_SHARED) + o], TILE_OF(n))
#endif
#define SUM(n) x.x * ROW(n, 0) + x.y * ROW(n, 1) + x.z * ROW(n, 2) + x.w * ROW(n, 3)
#define ADD(n, i, j) acc[n] += SUM(n);
#define ADD_TO_GROUP(n, i, j) of_group[n] += SUM(n);

void main() {
#ifdef PIXEL
  ivec2 p = PIXEL;
#else
  ivec2 p = ivec2(gl_FragCoord.xy);
#endif
#ifdef PARTIAL_SUMS_W
  vec2 row_norm = mean_and_scale();
#endif
#ifdef FIRST_COLUMN  // this pass does not draw the columns of pixels before FIRST_COLUMN
  p.x -= FIRST_COLUMN;
#endif
#ifdef ACROSS  // this pass draws several products of the same shape side by side, each ACROSS pixels wide
  p.x %= ACROSS;
#endif
  int column = p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4;
#ifdef PIXEL
  int slice = slice_of_k * BANDS + BAND;
#else
  int slice = p.y / BY;
#endif
#ifdef PARTS
  int part = column / W_W % PARTS;
#define COLUMN_OF_W (column / (PARTS * W_W) * W_W + column % W_W)
#else
#define COLUMN_OF_W column
#endif
  vec4 acc[Y_N];
  // The sum of the elements of x by which a group of rows of w is multiplied. This sum times the group's minima is what
  // the minima add to the product.
  float inputs = 0.0;
  ivec3 at[COLUMNS];  // texel coordinates in w: (texel, first row, layer)
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
  for (int n = 0; n < COLUMNS; n++) {
    int texel = min(CONTIGUOUS > 0 ? CONTIGUOUS * COLUMN_OF_W + n : COLUMN_OF_W + n * STRIDE, W_TEXELS - 1);
    at[n] = W_AT(texel);
  }
#ifdef INTERLEAVED
#define EACH_OF_SLICE(sums) \
  if (slice_of_k * SLICE * BANDS < K4) { \
    for (int round = 0; round < SLICE; round++) MULTIPLY(sums, (slice_of_k * SLICE + round) * BANDS + BAND, K4 - 1) \
  }
#elif defined(PIXEL) && K4 % SLICE == 0 && SLICE % AT_ONCE == 0
#if AT_ONCE == 1
#define ROUNDS SLICE  // constant, so that compilers unroll the loop and a GPU fetches for several rounds at a time
#else
#define ROUNDS (SLICE / AT_ONCE + min(slice_of_k, 0))  // not constant, to prevent unrolling, which was not faster here
#endif
#define EACH_OF_SLICE(sums) \
  if (slice * SLICE < K4) { \
    for (int round = 0; round < ROUNDS; round++) MULTIPLY(sums, slice * SLICE + AT_ONCE * round, K4 - 1) \
  }
#else
#define EACH_OF_SLICE(sums) for (int k4 = slice * SLICE; k4 < end; k4 += AT_ONCE) MULTIPLY(sums, k4, end - 1)
#endif
  int end = min((slice + 1) * SLICE, K4);
#if defined W_GROUP && W_TR == 1 && W_GROUP / 4 % SLICE == 0
  // The slice is inside one group of rows of w, so its sums are scaled only at the end. Separate sums for a group would
  // take twice as many registers.
  EACH_OF_SLICE(ADD)
#define SCALING(n) w_scaling(0, min(4 * slice * SLICE, W_ROWS - 1), at[n / W_SHARED], TILE_OF(n))
#define SCALE(n, i, j) acc[n] = W_PLUS_SCALED(vec4(0.0), acc[n] * W_UNIT(TILE_OF(n)), SCALING(n), inputs);
  Y_TILES(SCALE)
#elif defined WHOLE_GROUPS
  // A slice consists of whole groups of rows of w. The sum over each group is multiplied by the group's scales. All
  // groups are equally long, so the inner loop has a constant number of rounds.
  for (int first = slice * SLICE; first < end; first += W_GROUP / 4) {
    int tile = W_TR == 1 ? 0 : 4 * first / W_H, row = 4 * first - tile * W_H, row_of_w = W_Y(row);
    inputs = 0.0;
    vec4 of_group[Y_N];
#ifdef X_OF_GROUP
    ivec3 of_x = X_PLACE(first);
#endif
#define START_GROUP(n, i, j) of_group[n] = vec4(0.0);
    Y_TILES(START_GROUP)
    for (int k = 0; k < W_GROUP / 4; k++) {
#ifdef X_OF_GROUP
      vec4 x = X(of_x.z, of_x.y, of_x.x + k);
#else
      vec4 x = FACTOR(first + k);
#endif
      W_TEXEL w[4 * COLUMNS];
      for (int o = 0; o < 4; o++) {
        for (int n = 0; n < COLUMNS; n++) {
          w[4 * n + o] = W(tile * W_ACROSS + at[n].z, at[n].y + row_of_w + 4 * k + o, at[n].x);
        }
      }
      const int m = 0;  // used by ROW: the number of the texel of x within a round, which has a single one here
      Y_TILES(ADD_TO_GROUP)
      ADD_INPUTS(x)
    }
#define SCALING(n) w_scaling(tile, row, at[n / W_SHARED], TILE_OF(n))
#define SCALE(n, i, j) acc[n] = W_PLUS_SCALED(acc[n], of_group[n] * W_UNIT(TILE_OF(n)), SCALING(n), inputs);
    Y_TILES(SCALE)
  }
#elif defined W_GROUP
  // The sum over each group of rows of w is multiplied by the group's scales.
  for (int k4 = slice * SLICE; k4 < end;) {
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
    int stop = min(end, k4 + (min(row / W_GROUP * W_GROUP + W_GROUP, W_H) - row + 3) / 4);
    vec4 of_group[Y_N];
    inputs = 0.0;
#define START_GROUP(n, i, j) of_group[n] = vec4(0.0);
    Y_TILES(START_GROUP)
    for (; k4 < stop; k4 += AT_ONCE) MULTIPLY(ADD_TO_GROUP, k4, stop - 1)
    k4 = stop;
#define SCALING(n) w_scaling(tile, row, at[n / W_SHARED], TILE_OF(n))
#define SCALE(n, i, j) acc[n] = W_PLUS_SCALED(acc[n], of_group[n] * W_UNIT(TILE_OF(n)), SCALING(n), inputs);
    Y_TILES(SCALE)
  }
#else
  EACH_OF_SLICE(ADD)
#endif
#ifdef ADDED_W
#define ADD_ONCE(n, i, j) if (slice == 0) acc[n] += added_at(0, min(n * STRIDE + column, (ADDED_COLS - 1) / 4));
  Y_TILES(ADD_ONCE)
#endif
  STORE_Y(acc)
}
