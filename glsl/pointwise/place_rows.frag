// Writes the rows of x to rows FIRST .. of y, where the viewport begins.
void main() {
  vec4 v[1];
  v[0] = x_at(int(gl_FragCoord.y) - FIRST, int(gl_FragCoord.x));
  STORE_Y(v)
}
