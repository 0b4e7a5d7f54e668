// Sums over the ROWS rows from row i * ROWS on, for row i of the outputs: g = dy x', a part of the gradient of the
// norm's gain; and, if the norm has a bias, b = dy, a part of the gradient of the bias. x' is the row before gain and
// bias.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 g[1], b[1];
  g[0] = b[0] = vec4(0.0);
  int end = min((p.y + 1) * ROWS, X_ROWS);
  for (int row = p.y * ROWS; row < end; row++) {
    vec4 s = BACK(0, row, 0), dy = dy_at(row, p.x);
    g[0] += dy * (x_at(row, p.x) - s.z) * s.w;
    b[0] += dy;
  }
  STORE_G(g)
#ifdef B_N
  STORE_B(b)
#endif
}
