// Scores of attention: y[t * N_HEAD + head, s] = SCALE * q[pos + t, head] . k[s, head]. For s > pos + t, y is MASKED.
// With BATCH > 1, rows of y are (t * BATCH + sequence) * N_HEAD + head, and rows of q and k are t * BATCH + sequence.
// If k has fewer heads than the scores, K_GROUP heads of the scores share one head of k; if q has fewer, Q_GROUP heads
// share one head of q (Ainslie et al. 2023).
// With TO_POSITION, a fragment writes nothing if its keys come after the positions of its rows in all row tiles,
// including row tiles that another pass writes.
// With WINDOW, keys WINDOW or more positions before the query are MASKED. With CAP, scores become CAP * tanh(x / CAP).
// A texel holds the scores of four keys. Each row tile holds a different range of t. A fragment computes one t in each
// tile, all for one head, so it uses each fetched key for several t.
#include "finite.glsl"
#include "limited.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int head = p.y % N_HEAD, b = p.y / N_HEAD % BATCH, first = 4 * p.x;
#define T_OF(i) ((i * Y_H + p.y) / (N_HEAD * BATCH))
#ifdef TO_POSITION
  if (first > pos + T_OF((Y_TR - 1))) discard;
#endif
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
  if (first <= pos + T_OF((Y_I + Y_NR - 1))) {
    int last = K_H / BATCH - 1;
    int d = 0;
#define KEY(s) k_at(min(s, last) * BATCH + b, head / K_GROUP * D4 + d)
#if Y_N == 1
    // Processes four texels of q at once, so that a GPU waits only once for all their fetches.
    for (; d + 4 <= D4; d += 4) {
      vec4 k[16], q[4];
      for (int e = 0; e < 4; e++) {
        q[e] = q_at(min(pos + T_OF(Y_I), last) * BATCH + b, head / Q_GROUP * D4 + d + e);
        for (int s = 0; s < 4; s++) k[4 * e + s] = k_at(min(first + s, last) * BATCH + b, head / K_GROUP * D4 + d + e);
      }
      for (int e = 0; e < 4; e++) {
        acc[0] += vec4(dot(q[e], k[4 * e]), dot(q[e], k[4 * e + 1]), dot(q[e], k[4 * e + 2]), dot(q[e], k[4 * e + 3]));
      }
    }
#endif
    for (; d < D4; d++) {
      vec4 k0 = KEY(first), k1 = KEY(first + 1), k2 = KEY(first + 2), k3 = KEY(first + 3);
      vec4 q[Y_N];
#define QUERY(n, i, j) q[n] = q_at(min(pos + T_OF(i), last) * BATCH + b, head / Q_GROUP * D4 + d);
      Y_TILES(QUERY)
#define DOT(n, i, j) acc[n] += vec4(dot(q[n], k0), dot(q[n], k1), dot(q[n], k2), dot(q[n], k3));
      Y_TILES(DOT)
    }
  }
#define MASK(n, i, j) acc[n] = mix(overflow_kept(capped(acc[n] * SCALE)), vec4(MASKED), beyond(first + ivec4(0, 1, 2, 3), pos + T_OF(i)));
  Y_TILES(MASK)
  STORE_Y(acc)
}
