// Multiplies a few rows of x by w. K is split into SPLIT_K slices, and sums are added in the order of `matvec.frag`.
// Row tile i of y holds the partial sums of ROW_GROUPS rows of x, which begin at row i * ROW_GROUPS, one below the
// other. For its slice of K, a fragment reads COLUMNS texels of each row of w and multiplies them by the matching
// elements of Y_NR rows of x.

// Number of texels of a row of w that a fragment reads; the pass may use only some of the column tiles in a texel.
#define COLUMNS ((Y_NC + W_SHARED - 1) / W_SHARED)
#define TILE(j) ((j) % W_SHARED)

// MULTIPLY multiplies four columns of x (texel k4 of each row) by the four matching rows of w. `sums` is the macro that
// adds up the result: ADD or ADD_TO_GROUP.
#define MULTIPLY(sums, k4) { \
    int tile = W_TR == 1 ? 0 : 4 * (k4) / W_H, row_of_w = W_Y(4 * (k4) - tile * W_H); \
    W_TEXEL w[4 * COLUMNS]; \
    for (int o = 0; o < 4; o++) { \
      for (int n = 0; n < COLUMNS; n++) w[4 * n + o] = W(tile * W_ACROSS + at[n].z, at[n].y + row_of_w + o, at[n].x); \
    } \
    vec4 x[Y_NR]; \
    Y_ROWTILES(LOAD) \
    vec4 v[4 * Y_NC]; \
    Y_COLTILES(DECODE) \
    Y_TILES(sums) \
    ADD_INPUTS(x) \
  }
#ifdef W_MINIMUM
#define ADD_INPUTS(x) for (int n = 0; n < Y_NR; n++) inputs[n] += dot(x[n], vec4(1.0));
#else
#define ADD_INPUTS(x)
#endif
#define START_INPUTS for (int n = 0; n < Y_NR; n++) inputs[n] = 0.0;
#define LOAD(n, i) x[n] = x_at(min(i * ROW_GROUPS + group, X_ROWS - 1), k4);
#define DECODE(n, j) for (int o = 0; o < 4; o++) v[4 * n + o] = W_DECODE(w[4 * (n / W_SHARED) + o], TILE(j));
#define SUM(i, j) \
  x[i - Y_I].x * v[4 * (j - Y_J)] + x[i - Y_I].y * v[4 * (j - Y_J) + 1] \
    + x[i - Y_I].z * v[4 * (j - Y_J) + 2] + x[i - Y_I].w * v[4 * (j - Y_J) + 3]
#define ADD(n, i, j) acc[n] += SUM(i, j);
#define ADD_TO_GROUP(n, i, j) of_group[n] += SUM(i, j);

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int column = p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4, slice = p.y / BY % SPLIT_K, group = p.y / (BY * SPLIT_K);
  vec4 acc[Y_N];
  // For each row of x: the sum of the elements by which a group of rows of w is multiplied. This sum times the group's
  // minima is the part of the product that comes from the minima.
  float inputs[Y_NR];
  START_INPUTS
  ivec3 at[COLUMNS];  // texel coordinates in w: (texel, first row, layer)
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
  for (int n = 0; n < COLUMNS; n++) {
    int texel = min(CONTIGUOUS > 0 ? CONTIGUOUS * column + n : column + n * STRIDE, W_TEXELS - 1);
    at[n] = W_AT(texel);
  }
  int end = min((slice + 1) * SLICE, K4);
#if defined W_GROUP && W_TR == 1 && W_GROUP / 4 % SLICE == 0
  for (int k4 = slice * SLICE; k4 < end; k4++) MULTIPLY(ADD, k4)
#define SCALING(j) w_scaling(0, 4 * slice * SLICE, at[(j - Y_J) / W_SHARED], TILE(j))
#define SCALE(n, i, j) acc[n] = W_PLUS_SCALED(vec4(0.0), acc[n], SCALING(j), inputs[i - Y_I]);
  Y_TILES(SCALE)
#elif defined W_GROUP
  // The sum over each group of rows of w is multiplied by the group's scales.
  for (int k4 = slice * SLICE; k4 < end;) {
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
    int stop = min(end, k4 + (min(row / W_GROUP * W_GROUP + W_GROUP, W_H) - row + 3) / 4);
    vec4 of_group[Y_N];
    START_INPUTS
#define START_GROUP(n, i, j) of_group[n] = vec4(0.0);
    Y_TILES(START_GROUP)
    for (; k4 < stop; k4++) MULTIPLY(ADD_TO_GROUP, k4)
#define SCALING(j) w_scaling(tile, row, at[(j - Y_J) / W_SHARED], TILE(j))
#define SCALE(n, i, j) acc[n] = W_PLUS_SCALED(acc[n], of_group[n], SCALING(j), inputs[i - Y_I]);
    Y_TILES(SCALE)
  }
#else
  for (int k4 = slice * SLICE; k4 < end; k4++) MULTIPLY(ADD, k4)
#endif
  STORE_Y(acc)
}
