// The best of the blocks' bests: texel 0 = (column, value, 1 if any value of the row is not finite, 0); others are 0.
void main() {
  vec4 best = vec4(0.0);
  for (int y = 0; y < X_H && gl_FragCoord.x < 1.0; y++) {
    for (int x = 0; x < X_W; x++) {
      vec4 b = X(0, y, x);
      bool better = b.x > best.x || (b.x == best.x && b.y < best.y);
      if (b.z > 0.0 && (best.z == 0.0 || better)) best.xyz = b.xyz;
      best.w = max(best.w, b.w);
    }
  }
  vec4 v[1];
  v[0] = vec4(best.y, best.x, best.w, 0.0);
  STORE_Y(v)
}
