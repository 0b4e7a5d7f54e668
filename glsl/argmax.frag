// The greatest value of each block of a row, and where: texel = (value, column, 0, 0); the first of equals wins.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int block = p.y * Y_W + p.x;
  vec2 best = vec2(-3.4e38, 0.0);
  bool found = false;
  for (int c4 = block; c4 < C4; c4 += BLOCKS) {
    vec4 x = x_at(0, c4);
    for (int i = 0; i < 4; i++) {
      if (4 * c4 + i < X_COLS && (x[i] > best.x || !found)) { best = vec2(x[i], float(4 * c4 + i)); found = true; }
    }
  }
  vec4 v[1];
  v[0] = vec4(best, found ? 1.0 : 0.0, 0.0);
  STORE_Y(v)
}
