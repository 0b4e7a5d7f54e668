// Adds up the x component of every texel of several tensors, of at most TEXELS texels each. Each texel of the target sums
// every Y_W-th texel.
void main() {
  float sum = 0.0;
  for (int k = int(gl_FragCoord.x); k < TEXELS; k += Y_W) {
#define ADD(A, W, H) if (k < W * H) sum += A(0, k / W, k % W).x;
    EVERY
  }
  vec4 v[1];
  v[0] = vec4(sum, 0.0, 0.0, 0.0);
  STORE_Y(v)
}
