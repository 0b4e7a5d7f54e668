// Adds up the x components of the texels of several tensors, which have at most TEXELS texels each. Texel k of y is the
// sum over texels k, k + Y_W, k + 2 Y_W .. of all these tensors.
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
