// One row: z[head] = softmax(scores[head]) v, without writing the pattern. Each fragment takes its head's maximum,
// then one sum of exponentials serves for the weights and for their total.
void main() {
  int c4 = int(gl_FragCoord.x), head = c4 / D4, keys = pos + 1;
  float m = -3.0e38;
  for (int s = 0; 4 * s < keys; s++) {  // scores beyond the position are MASKED, a number below all others
    vec4 x = X(0, head, s);
    m = max(m, max(max(x.x, x.y), max(x.z, x.w)));
  }
  vec4 acc[1];
  acc[0] = vec4(0.0);
  float total = 0.0;
  for (int s = 0; s < keys; s += 4) {
    vec4 w = exp(X(0, head, s / 4) - m);
    total += w.x;
    acc[0] += w.x * V(0, s, c4);
    if (s + 1 < keys) { total += w.y; acc[0] += w.y * V(0, s + 1, c4); }
    if (s + 2 < keys) { total += w.z; acc[0] += w.z * V(0, s + 2, c4); }
    if (s + 3 < keys) { total += w.w; acc[0] += w.w * V(0, s + 3, c4); }
  }
  acc[0] /= total;
  STORE_Y(acc)
}
