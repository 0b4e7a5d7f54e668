// Finds the least likely token that top-k and top-p keep, in one part of the candidates (`rank.frag`): texel = (logit,
// id, rank or -1 if none is kept, number of certain candidates). A candidate is certain if all likelier tokens are
// candidates too. The last candidate of a block is marked (0.5 is added to its id) if the block has more tokens, which
// may be likelier than candidates of other blocks. So the likeliest marked candidate is certain, and so are all
// likelier candidates. `threshold.glsl` combines the parts. The last texel is a copy of BEST (the greatest logit, from
// `argmax_final.frag`) for `threshold.glsl`.
#include "nucleus.glsl"

float weight(float x) { return exp((x - BEST(0, 0, 0).y) * inverse_temperature); }

void main() {
  vec4 last = vec4(LEAST, -1.0, -1.0, 3.0e38), v[1];
  float k = 3.0e38, held = 0.0, wanted = 3.0e38;
#ifdef M1_W
  held = bracket().w;  // weight of the tokens above all candidates
  float all = 0.0;
  for (int y = 0; y < M1_H; y++) all += M1(0, y, 3).w;
  wanted = top_p * all - held;
#else
  k = float(top_k > 0 ? min(top_k, COLS) : 0);
  for (int y = 0; y < RANKED_H && top_k > 0 && top_p < 1.0; y++) {
    for (int b = 0; b < RANKED_W; b++) {
      vec4 r = RANKED(0, y, b);
      if (r.y >= 0.0 && r.z == k - 1.0) wanted = top_p * (r.w + weight(r.x));
    }
  }
#endif
  for (int y = 0; y < RANKED_H; y++) {
    for (int b = int(gl_FragCoord.x); b < RANKED_W; b += Y_W - 1) {
      vec4 r = RANKED(0, y, b);
      if (r.y < 0.0) continue;
      if (fract(r.y) > 0.0) last.w = min(last.w, r.z + 1.0);
      bool kept = r.z < k && (held + r.w == 0.0 || r.w < wanted);
      if (kept && r.z > last.z) last.xyz = vec3(r.x, floor(r.y), r.z);
    }
  }
  v[0] = int(gl_FragCoord.x) == Y_W - 1 ? BEST(0, 0, 0) : last;
  STORE_Y(v)
}
