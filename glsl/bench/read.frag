// Reads each texel of a texture once, in the order of `matvec.frag`: a fragment adds up ACROSS neighbouring texels of
// each of ROWS_EACH rows.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int column = ACROSS * (p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4), first = p.y / BY * ROWS_EACH;
  ivec3 at = X_PLACE(column);
  vec4 v[1];
  v[0] = vec4(0.0);
  for (int row = first; row < first + ROWS_EACH; row += 4) {
    for (int o = 0; o < 4; o++) {
      for (int i = 0; i < ACROSS; i++) v[0] += X(at.z, at.y + row + o, at.x + i);
    }
  }
  STORE_Y(v)
}
