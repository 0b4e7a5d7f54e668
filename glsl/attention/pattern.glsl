// X_OF(i, y, k): texel k (keys 4 k .. 4 k + 3) of row y of row tile i of x, which is a pattern or the gradient of one, stored
// as f32 or as packed f16 of two column tiles.
#if X_SHARED > 1
vec4 x_of(int i, int y, int k) {
  X_TEXEL t = X(i, y, k % X_W);
  return X_DECODE(t, k / X_W);
}
#define X_OF(i, y, k) x_of(i, y, k)
#else
#define X_OF(i, y, k) X(i, y, k)
#endif
