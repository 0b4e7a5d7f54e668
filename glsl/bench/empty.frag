// The cheapest possible pass.
void main() {
  vec4 v[1];
  v[0] = vec4(1.0);
  STORE_Y(v)
}
