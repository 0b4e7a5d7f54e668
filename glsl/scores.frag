// scores[t * n_head + head, s] = scale * q[pos + t, head] . k[s, head]; beyond the position, MASKED.
// Texel column = four keys; the row tiles are far-apart t of the same head, so they share every fetched key.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int head = p.y % N_HEAD, first = 4 * p.x;
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
#define T_OF(i) ((i * Y_H + p.y) / N_HEAD)
  if (first <= pos + T_OF((Y_TR - 1))) {
    int last = K_H - 1;
    for (int d = head * D4; d < (head + 1) * D4; d++) {
      vec4 k0 = K(0, first, d), k1 = K(0, min(first + 1, last), d);
      vec4 k2 = K(0, min(first + 2, last), d), k3 = K(0, min(first + 3, last), d);
#define DOT(n, i, j) { \
        vec4 q = Q(0, min(pos + T_OF(i), last), d); \
        acc[n] += vec4(dot(q, k0), dot(q, k1), dot(q, k2), dot(q, k3)); \
      }
      Y_TILES(DOT)
    }
  }
#define MASK(n, i, j) acc[n] = mix(acc[n] * SCALE, vec4(MASKED), greaterThan(first + ivec4(0, 1, 2, 3), ivec4(pos + T_OF(i))));
  Y_TILES(MASK)
  STORE_Y(acc)
}
