// The sum of a split product's partial sums for one texel of columns; `matvec.frag` says where they lie.
// A plain loop with a constant bound: drivers unroll it better than a hand does.
vec4 sum_parts(int c4) {
#if NEAR > 0
  int layer = c4 % NEAR, column = c4 / NEAR;
#else  // of a wide row, APART is all of it, and every column in layer 0
  int layer = c4 / APART % 2, column = c4 / (2 * APART) * APART + c4 % APART;
#endif
  ivec2 at = ivec2(column / (4 * BY) * 4 + column % 4, column / 4 % BY);
  vec4 sum = vec4(0.0);
  for (int s = 0; s < PARTS; s++) sum += PART(layer, s * BY + at.y, at.x);
  return sum;
}
