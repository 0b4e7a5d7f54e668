// Adds up the heads of x, a single row in which each head is as wide as y: y = their sum (+ plus).
void main() {
  vec4 v[1];
  int c4 = int(gl_FragCoord.x);
  v[0] = vec4(0.0);
  for (int k = c4; 4 * k < X_COLS; k += Y_W) v[0] += x_at(0, k);
#ifdef PLUS_W
  v[0] += plus_at(0, c4);
#endif
  STORE_Y(v)
}
