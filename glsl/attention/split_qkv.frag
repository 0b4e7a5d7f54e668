// Splits a product into q, k and v, and writes row t of each to row `pos` + t of its cache. The product holds the
// columns of q, then those of k, then those of v. With MOMENTS, the product was computed from a row before its norm,
// and the input holds partial sums of the product. This pass adds up the sums and applies the norm. If there are
// several rows (one of each text), BATCH_ROW is the row of the product that this fragment computes: the fragment's row
// minus the scalar `row` (EACH_NEW_ROW in `glgpt/ops/partial_sums.py`).
#ifdef MOMENTS
#include "folded_norm.glsl"
#include "partial_sums.glsl"
#endif

void main() {
  int t = int(gl_FragCoord.y) - pos;
  vec4 q[Q_N], k[Q_N], v[Q_N];
#ifdef MOMENTS
  int c4 = int(gl_FragCoord.x);
  vec2 scale = mean_and_scale();
  q[0] = normed(sum_of_partial_sums(c4), c4, scale);
  k[0] = normed(sum_of_partial_sums(Q_W + c4), Q_W + c4, scale);
  v[0] = normed(sum_of_partial_sums(2 * Q_W + c4), 2 * Q_W + c4, scale);
#else
#define SPLIT(n, i, j) { \
    int c4 = j * Q_W + int(gl_FragCoord.x); \
    q[n] = k[n] = v[n] = vec4(0.0); \
    if (4 * c4 < Q_COLS) { \
      q[n] = x_at(t, c4); \
      k[n] = x_at(t, Q_COLS / 4 + c4); \
      v[n] = x_at(t, Q_COLS / 2 + c4); \
    } \
  }
  Q_TILES(SPLIT)
#endif
  STORE_Q(q)
  STORE_K(k)
  STORE_V(v)
}
