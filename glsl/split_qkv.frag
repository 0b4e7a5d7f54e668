// Rows of q, k and v from the product with c_attn, each at its position: texel row pos + t of three caches.
// With MOMENTS, from the partial sums of one row before its norm, which is finished here. Several such
// rows, BATCH_ROW of them, go to texel rows row ...
#ifdef MOMENTS
#include "folded_norm.glsl"
#include "partial_sums.glsl"
#endif

void main() {
  int t = int(gl_FragCoord.y) - pos, c4 = int(gl_FragCoord.x);
  vec4 q[1], k[1], v[1];
#ifdef MOMENTS
  vec2 scale = mean_and_scale();
  q[0] = normed(sum_of_partial_sums(c4), c4, scale);
  k[0] = normed(sum_of_partial_sums(Q_W + c4), Q_W + c4, scale);
  v[0] = normed(sum_of_partial_sums(2 * Q_W + c4), 2 * Q_W + c4, scale);
#else
  q[0] = x_at(t, c4);
  k[0] = x_at(t, Q_W + c4);
  v[0] = x_at(t, 2 * Q_W + c4);
#endif
  STORE_Q(q)
  STORE_K(k)
  STORE_V(v)
}
