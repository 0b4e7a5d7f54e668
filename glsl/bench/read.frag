// Reads a texture once and adds it up: each fragment walks down a part of the rows, in ACROSS places of each row.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[1];
  v[0] = vec4(0.0);
  int end = min((p.y + 1) * PART, X_H);
  for (int row = p.y * PART; row < end; row += 4) {
    for (int o = 0; o < 4; o++) {
      for (int i = 0; i < ACROSS; i++) v[0] += X(0, min(row + o, X_H - 1), p.x + i * Y_W);
    }
  }
  STORE_Y(v)
}
