// Copies keys and values from a text's own caches (K, V) to the caches that several texts share (SHARED_K, SHARED_V):
// the rows from `pos` on are copied to the rows from `row` on. The entry `restore_1` copies in the other direction: its
// K and V are the shared caches.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int from = min(pos + p.y - row, K_H - 1);
  vec4 k[1], v[1];
  k[0] = K(0, from, p.x);
  v[0] = V(0, from, p.x);
  STORE_SHARED_K(k)
  STORE_SHARED_V(v)
}
