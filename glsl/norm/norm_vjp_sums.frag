// Computes parts of the gradients of a norm's gain and bias, which `column_sums.frag` adds up. Row i of g is the sum of
// dy x' over ROWS rows, from row i * ROWS on, where x' = (x - mean) / deviation. If the norm has a bias, row i of b is
// the sum of dy over the same rows.
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
