// Each texel: the sum of squares of a share of x's texels, walked in steps of the target's size.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  const int across = (X_COLS + 3) / 4;
  vec4 sum = vec4(0.0);
  for (int k = p.y * Y_W + p.x; k < X_ROWS * across; k += Y_W * Y_H) {
    vec4 x = x_at(k / across, k % across);
    sum += x * x;
  }
  vec4 v[1];
  v[0] = vec4(dot(sum, vec4(1.0)), 0.0, 0.0, 0.0);
  STORE_Y(v)
}
