// The best of a row's blocks' bests: texel 0 = (column, value, 1 if any value of the row is not finite, 0); others are 0.
// Eight blocks are fetched at once: their number is a multiple of HIGH, which is 8.
void main() {
  vec4 best = vec4(0.0);
  int first = int(gl_FragCoord.y) * HIGH;
  for (int block = 0; block < HIGH * X_W && gl_FragCoord.x < 1.0; block += 8) {
    vec4 each[8];
    for (int k = 0; k < 8; k++) each[k] = X(0, first + (block + k) / X_W, (block + k) % X_W);
    for (int k = 0; k < 8; k++) {
      vec4 b = each[k];
      bool better = b.x > best.x || (b.x == best.x && b.y < best.y);
      if (b.z > 0.0 && (best.z == 0.0 || better)) best.xyz = b.xyz;
      best.w = max(best.w, b.w);
    }
  }
  vec4 v[1];
  v[0] = vec4(best.y, best.x, best.w, 0.0);
  STORE_Y(v)
}
