// Rows FIRST .. of y, which the viewport names, = the rows of x.
void main() {
  vec4 v[1];
  v[0] = x_at(int(gl_FragCoord.y) - FIRST, int(gl_FragCoord.x));
  STORE_Y(v)
}
