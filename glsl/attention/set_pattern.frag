// Replaces the attention pattern of each head according to the head's texel of HOW: 0 leaves the pattern unchanged; 1
// attends to all tokens so far equally; 2 attends to the previous token only; 3 attends to the first token only.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define SET(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x, t = pos + row / N_HEAD; \
    int how = int(how_at(0, row % N_HEAD).x + 0.5); \
    ivec4 key = 4 * c4 + ivec4(0, 1, 2, 3); \
    v[n] = 4 * c4 < Y_COLS ? x_at(row, c4) : vec4(0.0); \
    if (how == 1) v[n] = mix(vec4(0.0), vec4(1.0 / float(t + 1)), lessThanEqual(key, ivec4(t))); \
    else if (how == 2) v[n] = vec4(equal(key, ivec4(max(t - 1, 0)))); \
    else if (how == 3) v[n] = vec4(equal(key, ivec4(0))); \
  }
  Y_TILES(SET)
  STORE_Y(v)
}
