// What a norm's gain and bias come to behind a linear layer: gain w, and bias w + the layer's own bias.
void main() {
  int c4 = int(gl_FragCoord.x);
  vec4 g[1], b[1];
  g[0] = vec4(0.0);
  b[0] = shift_at(0, c4);
  for (int k = 0; k < GAIN_COLS; k++) {
    vec4 w = w_at(k, c4);
    g[0] += gain_at(0, k / 4)[k % 4] * w;
    b[0] += bias_at(0, k / 4)[k % 4] * w;
  }
  STORE_G(g)
  STORE_B(b)
}
