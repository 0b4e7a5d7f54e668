// One row: z[head] = softmax(scores[head]) v, without writing the pattern: the sum is rescaled whenever a greater score
// comes (Milakov and Gimelshein 2018). Keys go by sixteens, so that many fetches are on their way at once; the rest one
// by one, since rows of v beyond the position may hold anything.
float greatest(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

void main() {
  int c4 = int(gl_FragCoord.x), head = c4 / D4, keys = pos + 1;
  float m = -3.0e38;
  vec4 acc[1];
  acc[0] = vec4(0.0);
  vec4 total = vec4(0.0);
  int s = 0;
#define WEIGH(t, o) \
  (t.x * V(0, s + o, c4) + t.y * V(0, s + o + 1, c4)) + (t.z * V(0, s + o + 2, c4) + t.w * V(0, s + o + 3, c4))
  for (; s + 16 <= keys; s += 16) {
    int k = s / 4;
    vec4 a = X(0, head, k), b = X(0, head, k + 1), c = X(0, head, k + 2), d = X(0, head, k + 3);
    float before = m;
    m = max(m, greatest(max(max(a, b), max(c, d))));
    float rescale = exp(before - m);
    a = exp(a - m);
    b = exp(b - m);
    c = exp(c - m);
    d = exp(d - m);
    acc[0] = acc[0] * rescale + WEIGH(a, 0) + WEIGH(b, 4) + WEIGH(c, 8) + WEIGH(d, 12);
    total = total * rescale + a + b + c + d;
  }
  for (; s < keys; s++) {
    float x = X(0, head, s / 4)[s % 4], before = m;
    m = max(m, x);
    float rescale = exp(before - m), w = exp(x - m);
    acc[0] = acc[0] * rescale + w * V(0, s, c4);
    total = total * rescale + vec4(w, 0.0, 0.0, 0.0);
  }
  acc[0] /= total.x + total.y + total.z + total.w;
  STORE_Y(acc)
}
