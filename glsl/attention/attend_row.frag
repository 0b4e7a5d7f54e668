// Attention of one row: y[head] = softmax(scores[head]) v, where x holds the scores. Each row of y is for one range of
// keys: a range of KEYS keys, or with RANGE_KEYS a range of `ranges.glsl`. `attended.glsl` combines the ranges. The
// softmax is not stored: whenever a greater score is found, the sum so far is rescaled (Milakov and Gimelshein 2018).
// If there are several ranges, the second output, LOGS, holds the logarithm of each range's sum of exponentials;
// `attended.glsl` uses this sum as the weight of the range. Sixteen keys are processed at once, so that many fetches
// run in parallel. The final sixteen may reach beyond the last key, where the rows of v are undefined. For each key
// beyond the last one, the row of an earlier key is fetched instead, with the score NOTHING, so that it has no weight.
// With PLACES, does the same for one row of each of several texts; y has RANGES rows for each text. PLACES holds the
// position of each text. Row i of TABLE is for text i: for each key, it holds the number of the row of v to use.
#ifdef PLACES_W
#define TEXT (p.y / RANGES)
#define RANGE (p.y % RANGES)
#define LAST int(PLACES(0, TEXT, 0).x)
#define HEAD (TEXT * N_HEAD + p.x / D4)
#define VALUES_OF(k) ivec4(TABLE(0, TEXT, k))
#define LAST_VALUES(k) ivec4(mix(TABLE(0, TEXT, WITHIN(k)), TABLE(0, TEXT, WITHIN(k)).xxxx, BEYOND(k)))
#else
#define RANGE p.y
#define LAST pos
#ifdef RANGE_KEYS
#include "ranges.glsl"
#define FIRST_KEY first_key()
#define KEYS keys_of_range()
#endif
#define HEAD (p.x / D4)
#define VALUES_OF(k) (4 * (k) + ivec4(0, 1, 2, 3))
#define LAST_VALUES(k) min(VALUES_OF(k), ivec4(keys - 1))
#endif
#ifndef FIRST_KEY
#define FIRST_KEY 0
#endif
#define NOTHING -1.0e38  // the score of a key beyond the last one
float greatest(vec4 x) { return max(max(x.x, x.y), max(x.z, x.w)); }

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int head = HEAD, c4 = p.x / D4 / GROUP * D4 + p.x % D4, count = KEYS;
  int s = FIRST_KEY + RANGE * count, keys = min(s + count, LAST + 1);
  float m = -3.0e38;
  vec4 acc[1], logs[1];
  acc[0] = vec4(0.0);
  vec4 total = vec4(0.0);
#define WEIGH(t, at) (t.x * V(0, at.x, c4) + t.y * V(0, at.y, c4)) + (t.z * V(0, at.z, c4) + t.w * V(0, at.w, c4))
#define SIXTEEN(SCORES, VALUES) { \
    int k = s / 4; \
    vec4 a = SCORES(k), b = SCORES(k + 1), c = SCORES(k + 2), d = SCORES(k + 3); \
    ivec4 at = VALUES(k), bt = VALUES(k + 1), ct = VALUES(k + 2), dt = VALUES(k + 3); \
    float before = m; \
    m = max(m, greatest(max(max(a, b), max(c, d)))); \
    float rescale = exp(before - m); \
    a = exp(a - m); \
    b = exp(b - m); \
    c = exp(c - m); \
    d = exp(d - m); \
    acc[0] = acc[0] * rescale + WEIGH(a, at) + WEIGH(b, bt) + WEIGH(c, ct) + WEIGH(d, dt); \
    total = total * rescale + a + b + c + d; \
  }
#define SCORES_OF(k) X(0, head, k)
  for (; s + 16 <= keys; s += 16) SIXTEEN(SCORES_OF, VALUES_OF)
#define WITHIN(k) min(k, (keys - 1) / 4)
#define BEYOND(k) greaterThanEqual(4 * (k) + ivec4(0, 1, 2, 3), ivec4(keys))
#define LAST_SCORES(k) mix(X(0, head, WITHIN(k)), vec4(NOTHING), BEYOND(k))
  if (s < keys) SIXTEEN(LAST_SCORES, LAST_VALUES)
  float sum = max(total.x + total.y + total.z + total.w, 1.0e-30);  // total is 0 in ranges after the position
  acc[0] /= sum;
  STORE_Y(acc)
#ifdef LOGS_N
  logs[0] = vec4(m + log(sum), 0.0, 0.0, 0.0);
  STORE_LOGS(logs)
#endif
}
