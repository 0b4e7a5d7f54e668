// Finds the greatest value of each block of each row of x: a texel of y = (value, column, 1 if the block has values, 1
// if the block has a NaN or an infinity). Block b consists of texels b, b + BLOCKS, b + 2 BLOCKS .. of a row. Of equal
// values, the first one is returned. y has HIGH rows of texels for each row of x. Eight texels are fetched at once.
#include "finite.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int row_of_x = p.y / HIGH, block = p.y % HIGH * Y_W + p.x;
  vec4 best = vec4(0.0);
  for (int first = block; first < C4; first += 8 * BLOCKS) {
    vec4 x[8];
    for (int k = 0; k < 8; k++) x[k] = x_at(row_of_x, min(first + k * BLOCKS, C4 - 1));
    for (int k = 0; k < 8; k++) {
      int c = 4 * (first + k * BLOCKS);
      for (int i = 0; i < 4 && c + i < X_COLS; i++) {
        if (!finite(x[k][i])) best.w = 1.0;
        if (best.z == 0.0 || x[k][i] > best.x) best.xyz = vec3(x[k][i], float(c + i), 1.0);
      }
    }
  }
  vec4 v[1];
  v[0] = best;
  STORE_Y(v)
}
