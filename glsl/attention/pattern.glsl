// X_OF(i, y, k) returns keys 4 k to 4 k + 3 of row y in row tile i of x. x is an attention pattern or the gradient of
// scores, stored as f32, or as f16 with two column tiles in a texel.
#if X_SHARED > 1
vec4 x_of(int i, int y, int k) {
  X_TEXEL t = X(i, y, k % X_W);
  return X_DECODE(t, k / X_W);
}
#define X_OF(i, y, k) x_of(i, y, k)
#else
#define X_OF(i, y, k) X(i, y, k)
#endif
