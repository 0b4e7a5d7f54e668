// For each row: (-log softmax(x)[target], 1, log of the sum of exponentials, target); the first two are 0 for a
// negative target.
#include "softmax.glsl"

void main() {
  int row = int(gl_FragCoord.y);
  vec2 sum = NOTHING;
  for (int s = 0; s < STATS_W; s++) sum = merge_softmax(sum, STATS(0, row, s).xy);
  int target = int(TARGETS(0, row, 0).x);
  // log(sum.y) and the target's logit are both relative to the maximum: a large maximum would make their difference
  // imprecise.
  vec4 v[1];
  v[0] = vec4(0.0, 0.0, sum.x + log(sum.y), float(target));
  if (target >= 0) v[0].xy = vec2(log(sum.y) - (x_at(row, target / 4)[target % 4] - sum.x), 1.0);
  STORE_Y(v)
}
