// The x of every texel of some tensors, added up into the target's texels in steps of its width.
void main() {
  int first = int(gl_FragCoord.x);
  float sum = 0.0;
#define ADD(A, W, H) for (int k = first; k < W * H; k += Y_W) sum += A(0, k / W, k % W).x;
  EVERY
  vec4 v[1];
  v[0] = vec4(sum, 0.0, 0.0, 0.0);
  STORE_Y(v)
}
