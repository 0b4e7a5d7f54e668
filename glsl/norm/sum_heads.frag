// y = the sum over the heads in the single row of x (+ plus).
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
