// Computes the scores of several texts with one query each: y[text * n_head + head, s] = SCALE * q . k[s]. For s beyond
// the text's position, y is MASKED. PLACES holds the position of each text. Row i of TABLE is for text i: for each key,
// it holds the number of the row of k to use. The queries are the rows of q from `row` on. K_GROUP heads of q share one
// head of k. Products are added in the same order as in `scores.frag`.
#include "finite.glsl"
#include "limited.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int head = p.y % N_HEAD, text = p.y / N_HEAD, first = 4 * p.x, last = int(PLACES(0, text, 0).x);
  vec4 acc[1];
  acc[0] = vec4(0.0);
  if (first <= last) {
    ivec4 at = ivec4(TABLE(0, text, p.x));
    for (int d = 0; d < D4; d++) {
#define KEY(s) K(0, s, head / K_GROUP * D4 + d)
      vec4 k0 = KEY(at.x), k1 = KEY(at.y), k2 = KEY(at.z), k3 = KEY(at.w), q = Q(0, row + text, head * D4 + d);
      acc[0] += vec4(dot(q, k0), dot(q, k1), dot(q, k2), dot(q, k3));
    }
  }
  acc[0] = mix(overflow_kept(capped(acc[0] * SCALE)), vec4(MASKED), beyond(first + ivec4(0, 1, 2, 3), last));
  STORE_Y(acc)
}
