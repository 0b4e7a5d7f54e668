// For each row of logits x, the output is (-log softmax(x)[target], 1, log of the sum of exponentials, target). The
// first two values are 0 if the target is negative.
#include "softmax.glsl"

void main() {
  int row = int(gl_FragCoord.y);
  vec2 sum = NOTHING;
  for (int s = 0; s < STATS_W; s++) sum = merge_softmax(sum, STATS(0, row, s).xy);
  int target = int(TARGETS(0, row, 0).x);
  // sum.y is the sum of exp(logit - maximum), and sum.x is the maximum. So the maximum is subtracted from the target's
  // logit too. Adding a large maximum to log(sum.y) instead would make the loss imprecise.
  vec4 v[1];
  v[0] = vec4(0.0, 0.0, sum.x + log(sum.y), float(target));
  if (target >= 0) v[0].xy = vec2(log(sum.y) - (x_at(row, target / 4)[target % 4] - sum.x), 1.0);
  STORE_Y(v)
}
