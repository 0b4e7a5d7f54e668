// Computes (norm, factor for gradients, 1 if the norm is finite else 0, 0) from the sum of squares of all gradients.
// The given gradients are those of (sum of losses) / ROWS. The gradients of the mean loss over the targets are `mean`
// times as large. The number of targets is the sum of the y components of the first MICRO_BATCHES rows of LOSSES; if
// every row has a target, `mean` is exactly 1. Clipping multiplies the gradients by min(1, CLIP / (norm + 1e-6)). With
// a loss scale, the given gradients have been multiplied by the loss scale, so `mean` also divides by it. The state
// OVERFLOWED becomes 1 at the first norm that is not finite. Until it is cleared, no later norm counts as finite.
#include "finite.glsl"

void main() {
  float counted = 0.0;
  for (int i = 0; i < MICRO_BATCHES; i++) counted += LOSSES(0, i, 0).y;
  float mean = counted < float(ROWS) ? float(ROWS) / max(counted, 1.0) : 1.0;
#ifdef LOSS_SCALE_W
  mean /= LOSS_SCALE(0, 0, 0).x;
#endif
  float norm = mean * sqrt(X(0, 0, 0).x);
  bool counts = finite(norm);
#ifdef LOSS_SCALE_W
  counts = counts && OVERFLOWED(0, 0, 0).x == 0.0;
  vec4 after[1];
  after[0] = vec4(counts ? 0.0 : 1.0, 0.0, 0.0, 0.0);
  STORE_AFTER(after)
#endif
  vec4 v[1];
  v[0] = vec4(norm, CLIP > 0.0 ? mean * min(1.0, CLIP / (norm + 1.0e-6)) : mean, counts ? 1.0 : 0.0, 0.0);
  STORE_Y(v)
}
