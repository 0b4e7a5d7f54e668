// Texel k of y is the sum of squares of texels k, k + n, k + 2 n .. of several tensors, where n is the number of texels
// of y. A single loop reads all tensors, since each further loop doubles the time of Mesa's compiler.
void main() {
  int first = int(gl_FragCoord.y) * Y_W + int(gl_FragCoord.x);
  vec4 sum = vec4(0.0);
  for (int k = first; k < TEXELS; k += Y_W * Y_H) {
#define ADD(at, ROWS, ACROSS) if (k < ROWS * ACROSS) { vec4 x = at(k / ACROSS, k % ACROSS); sum += x * x; }
    EVERY
  }
  vec4 v[1];
  v[0] = vec4(dot(sum, vec4(1.0)), 0.0, 0.0, 0.0);
  STORE_Y(v)
}
