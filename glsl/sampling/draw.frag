// Draws a token: that with the greatest score among the best tokens of all blocks (WINNERS, from `race.frag`). Texel 0
// = (id, logit, 1 if any logit is not finite, 1 if the candidates do not determine the threshold: state 2 in
// `threshold.glsl`). The next texels are the likeliest tokens: (id, logit, 1 if top-k, top-p and min-p keep the token,
// 0); id is -1 if there are no more candidates. The last texel is (sum of exp(logit - greatest) over all tokens, sum of
// exp((logit - greatest) / temperature) over the kept tokens, the greatest logit, 0).
#include "threshold.glsl"

vec4 drawn(int row, float state) {
  vec4 best = vec4(-3.0e38, 0.0, 0.0, -1.0);
  for (int y = row * BLOCK_ROWS; y < (row + 1) * BLOCK_ROWS; y++) {
    for (int k = 0; k < WINNERS_W; k++) {
      vec4 b = WINNERS(0, y, k);
      bool better = best.w < 0.0 || b.x > best.x || (b.x == best.x && b.y < best.y);
      if (b.y >= 0.0 && better) best = b;
    }
  }
  return vec4(best.y, best.z, state == 1.0, state == 2.0);
}

vec4 likeliest(float rank, vec4 threshold) {
  for (int y = 0; y < RANKED_H; y++) {
    for (int b = 0; b < RANKED_W; b++) {
      vec4 r = RANKED(0, y, b);
      if (r.y < 0.0 || r.z != rank) continue;
      bool kept = r.x > threshold.x || (r.x == threshold.x && floor(r.y) <= threshold.y);
      return vec4(floor(r.y), r.x, kept, 0.0);
    }
  }
  return vec4(-1.0, 0.0, 0.0, 0.0);
}

vec4 sums(float greatest) {
  float plain = 0.0, kept = 0.0;
  for (int y = 0; y < CANDIDATES_H; y++) {
    for (int k = 0; k < CANDIDATES_W; k++) plain += CANDIDATES(CANDIDATES_TC - 1, y, k).z;
  }
  for (int y = 0; y < BLOCK_ROWS; y++) {
    for (int k = 0; k < WINNERS_W; k++) kept += WINNERS(0, y, k).w;
  }
  return vec4(plain, kept, greatest, 0.0);
}

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 threshold = found_threshold(), v[1];
  if (p.x == 0) v[0] = drawn(p.y, threshold.w);
  else if (p.x == Y_W - 1) v[0] = sums(threshold.z);
  else v[0] = likeliest(float(p.x - 1), threshold);
  STORE_Y(v)
}
