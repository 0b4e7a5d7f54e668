// The best of the blocks' bests: texel = (column, value, 0, 0).
void main() {
  vec3 best = vec3(0.0);
  for (int y = 0; y < X_H; y++) {
    for (int x = 0; x < X_W; x++) {
      vec4 b = X(0, y, x);
      bool better = b.x > best.x || (b.x == best.x && b.y < best.y);
      if (b.z > 0.0 && (better || best.z == 0.0)) best = b.xyz;
    }
  }
  vec4 v[1];
  v[0] = vec4(best.y, best.x, 0.0, 0.0);
  STORE_Y(v)
}
