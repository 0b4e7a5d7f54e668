// Computes (maximum, sum of exponentials) of each slice of each row of logits; the sum is NaN if one of the logits is
// not finite.
#include "finite.glsl"
#include "softmax.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec2 sum = NOTHING;
  int end = min((p.x + 1) * SLICE, C4);
  for (int c4 = p.x * SLICE; c4 < end; c4++) {
    sum = merge_softmax(sum, texel_softmax(overflow_kept(x_at(p.y, c4)), min(4, X_COLS - 4 * c4)));
  }
  vec4 v[1];
  v[0] = vec4(sum, 0.0, 0.0);
  STORE_Y(v)
}
