// X_OF(i, y, k): texel k of row y of row tile i of x, a pattern or a gradient of one: keys 4 k .. 4 k + 3, in f32 or as packed
// halves of two column tiles.
#if X_SHARED > 1
vec4 x_of(int i, int y, int k) {
  X_TEXEL t = X(i, y, k % X_W);
  return X_DECODE(t, k / X_W);
}
#define X_OF(i, y, k) x_of(i, y, k)
#else
#define X_OF(i, y, k) X(i, y, k)
#endif
