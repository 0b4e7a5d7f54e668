// One row from the partial sums of a split product: y = act(sum over parts), as of the normed row where there are MOMENTS.
#include "activation.glsl"
#ifdef MOMENTS
#include "folded_norm.glsl"
#endif

void main() {
  int c4 = int(gl_FragCoord.x);
  vec4 v[1];
  v[0] = vec4(0.0);
  for (int s = 0; s < X_ROWS; s++) v[0] += x_at(s, c4);
#ifdef MOMENTS
  v[0] = normed(v[0], c4, mean_and_scale());
#endif
  v[0] = act(v[0]);
  STORE_Y(v)
}
