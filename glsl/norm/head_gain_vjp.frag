// Computes parts of the gradient of a head norm's gain, which `column_sums.frag` adds up: row i of y = the sum of
// dy * x * scale over ROWS rows, from row i * ROWS of x on. The scales are from `head_scales.frag`.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[1];
  v[0] = vec4(0.0);
  int end = min((p.y + 1) * ROWS, DY_ROWS);
  for (int row = p.y * ROWS; row < end; row++) {
    v[0] += dy_at(row, p.x) * x_at(row, FIRST + p.x) * scales_at(row, p.x / GROUP4).x;
  }
  STORE_Y(v)
}
