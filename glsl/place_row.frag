// The row of y that the viewport names = the only row of x.
void main() {
  vec4 v[1];
  v[0] = X(0, 0, int(gl_FragCoord.x));
  STORE_Y(v)
}
