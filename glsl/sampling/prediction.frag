// For each row of logits x: (-log softmax(x)[target], rank of the target, probability of the likeliest column, 1), or
// zeros if the target is negative. The rank is the number of columns with a greater value, or with an equal value and a
// smaller index.
#include "softmax.glsl"

void main() {
  int row = int(gl_FragCoord.y);
  vec2 sum = NOTHING;
  for (int s = 0; s < STATS_W; s++) sum = merge_softmax(sum, STATS(0, row, s).xy);
  int target = int(TARGETS(0, row, 0).x);
  vec4 v[1];
  v[0] = vec4(0.0);
  if (target >= 0) {
    float own = x_at(row, target / 4)[target % 4];
    int before = 0;
    for (int c4 = 0; c4 < C4; c4++) {
      vec4 x = x_at(row, c4);
      for (int i = 0; i < 4; i++) {
        int column = 4 * c4 + i;
        if (column < X_COLS && (x[i] > own || (x[i] == own && column < target))) before++;
      }
    }
    v[0] = vec4(log(sum.y) - (own - sum.x), float(before), 1.0 / sum.y, 1.0);
  }
  STORE_Y(v)
}
