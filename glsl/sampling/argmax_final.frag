// Finds the greatest value of a row from the results of `argmax.frag` for the blocks of the row: texel 0 of y =
// (column, value, 1 if any value of the row is not finite, 0); the other texels are 0. The results for a row are in
// HIGH rows of texels of x.
void main() {
  vec4 best = vec4(0.0);
  int first = int(gl_FragCoord.y) * HIGH;
  for (int x = 0; x < X_W && gl_FragCoord.x < 1.0; x++) {
    vec4 each[HIGH];
    for (int k = 0; k < HIGH; k++) each[k] = X(0, first + k, x);
    for (int k = 0; k < HIGH; k++) {
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
