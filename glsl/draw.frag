// Draws a token for each row: a block by one random number, a token of that block by another. Texel 0 = (id, logit, 1 if any logit is
// not finite, 1 if nothing is decided). Texels 1.. are the likeliest tokens: (id or -1, logit, whether it is kept, 0);
// the last is (sum of exp(logit - greatest) of all tokens without temperature, of the kept ones with it, greatest, 0).
#include "hash.glsl"
#include "kept.glsl"

float kept_total() {
  float total = 0.0;
  for (int y = 0; y < SUMS_H; y++) {
    for (int k = 0; k < SUMS_W; k++) total += SUMS(0, y, k).x;
  }
  return total;
}

vec4 drawn() {
  uvec4 bits = hash(uvec4(uint(draw_seed), uint(draw_step + int(gl_FragCoord.y)), SITE, 0u)) >> 8u;
  vec2 random = vec2(bits.xy) / 16777216.0;
  float rest = random.x * kept_total();
  int block = 0;
  bool found = false;
  for (int n = 0; n < SUMS_H * SUMS_W && !found; n++) {
    float sum = SUMS(0, n / SUMS_W, n % SUMS_W).x;
    if (sum <= 0.0) continue;
    block = n;  // the last that weighs anything, where rounding goes beyond it
    found = rest < sum;
    rest -= sum;
  }
  float total = 0.0;
  for (int c4 = block; c4 < C4; c4 += BLOCKS) total += dot(kept_weights(c4), vec4(1.0));
  rest = random.y * total;
  vec2 token = vec2(0.0);
  found = false;
  for (int c4 = block; c4 < C4 && !found; c4 += BLOCKS) {
    vec4 w = kept_weights(c4);
    for (int lane = 0; lane < 4; lane++) {
      if (found || w[lane] <= 0.0) continue;
      token = vec2(float(4 * c4 + lane), x_at(0, c4)[lane]);
      found = rest < w[lane];
      rest -= w[lane];
    }
  }
  float state = THRESHOLD(0, 0, 0).w;
  return vec4(token, state == 1.0, state == 2.0);
}

vec4 likeliest(float rank) {
  vec4 threshold = THRESHOLD(0, 0, 0);
  for (int y = 0; y < RANKED_H; y++) {
    for (int b = 0; b < RANKED_W; b++) {
      vec4 r = RANKED(0, y, b);
      bool kept = r.x > threshold.x || (r.x == threshold.x && r.y <= threshold.y);
      if (r.y >= 0.0 && r.z == rank) return vec4(r.y, r.x, kept, 0.0);
    }
  }
  return vec4(-1.0, 0.0, 0.0, 0.0);
}

vec4 sums() {
  float plain = 0.0;
  for (int y = 0; y < CANDIDATES_H; y++) {
    for (int k = 0; k < CANDIDATES_W; k++) plain += CANDIDATES(CANDIDATES_TC - 1, y, k).w;
  }
  return vec4(plain, kept_total(), THRESHOLD(0, 0, 0).z, 0.0);
}

void main() {
  int at = int(gl_FragCoord.x);
  vec4 v[1];
  v[0] = at == 0 ? drawn() : at == Y_W - 1 ? sums() : likeliest(float(at - 1));
  STORE_Y(v)
}
