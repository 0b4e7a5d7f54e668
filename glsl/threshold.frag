// Where the tokens end that top-k, top-p and min-p keep: texel = (logit, id, greatest logit, state). A token is kept if its
// logit is greater, or equal and its id not above this one. The state is 1 where a logit is not finite, 2 where the
// candidates do not reach so far: then nothing is decided.
// Candidates are the best of all tokens only as far as the first block's last one: beyond it that block may have more.
#include "nucleus.glsl"

float weight(float x) { return exp((x - BEST(0, 0, 0).y) * inverse_temperature); }

void main() {
  vec4 best = BEST(0, 0, 0), last = vec4(LEAST, 3.0e38, -1.0, 0.0), v[1];
  float certain = 3.0e38, k = 3.0e38, held = 0.0, all = 0.0;
  for (int b = 0; b < RANKED_W; b++) {
    vec4 r = RANKED(0, RANKED_H - 1, b);
    if (r.y >= 0.0) certain = min(certain, r.z + 1.0);
  }
#ifdef M1_W
  held = bracket().w;  // by tokens above all candidates
  all = M1(0, 0, 3).w;
#else
  if (top_k > 0) {
    k = float(min(top_k, COLS));
    for (int y = 0; y < RANKED_H; y++) {
      for (int b = 0; b < RANKED_W; b++) {
        vec4 r = RANKED(0, y, b);
        if (r.y >= 0.0 && r.z == k - 1.0) all = r.w + weight(r.x);
      }
    }
  }
#endif
  bool search = k < 3.0e38 || held > 0.0 || top_p < 1.0;
  for (int y = 0; y < RANKED_H && search; y++) {
    for (int b = 0; b < RANKED_W; b++) {
      vec4 r = RANKED(0, y, b);
      bool kept = r.y >= 0.0 && r.z < k && (held + r.w == 0.0 || top_p == 1.0 || held + r.w < top_p * all);
      if (kept && r.z > last.z) last = r;
    }
  }
  bool decided = !search || (last.z >= 0.0 && last.z < certain);
  v[0] = vec4(last.xy, best.y, best.z > 0.0 ? 1.0 : decided ? 0.0 : 2.0);
  if (best.y - margin > v[0].x) v[0].xy = vec2(best.y - margin, 3.0e38);
  STORE_Y(v)
}
