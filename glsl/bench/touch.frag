// Binds as many textures as a typical pass, but computes almost nothing.
void main() {
  vec4 v[1];
  v[0] = A(0, 0, 0) + B(0, 0, 0) + C(0, 0, 0);
  STORE_Y(v)
}
