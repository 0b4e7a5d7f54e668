// Rows of q, k and v from the product with c_attn, each at its position: texel row pos + t of three caches.
// From a split product (PARTS) it also adds up the partial sums and the bias.
vec4 column(int t, int c4) {
#ifdef PARTS
  vec4 sum = bias_at(0, c4);
  for (int s = 0; s < PARTS; s++) sum += x_at(s, c4);
  return sum;
#else
  return x_at(t, c4);
#endif
}

void main() {
  int t = int(gl_FragCoord.y) - pos, c4 = int(gl_FragCoord.x);
  vec4 v[1];
  v[0] = column(t, c4);
  STORE_Q(v)
  v[0] = column(t, Q_W + c4);
  STORE_K(v)
  v[0] = column(t, 2 * Q_W + c4);
  STORE_V(v)
}
