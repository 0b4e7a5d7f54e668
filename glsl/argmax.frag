// The greatest value of each block of a row, or of each row of several, and where: texel = (value, column, 1 if the block holds any, 1 if it holds
// a NaN or an infinity); the first of equals wins.
bool finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int row_of_x = p.y / HIGH, block = p.y % HIGH * Y_W + p.x;
  vec4 best = vec4(0.0);
  for (int c4 = block; c4 < C4; c4 += BLOCKS) {
    vec4 x = x_at(row_of_x, c4);
    for (int i = 0; i < 4; i++) {
      if (4 * c4 + i >= X_COLS) break;
      if (!finite(x[i])) best.w = 1.0;
      if (best.z == 0.0 || x[i] > best.x) best.xyz = vec3(x[i], float(4 * c4 + i), 1.0);
    }
  }
  vec4 v[1];
  v[0] = best;
  STORE_Y(v)
}
