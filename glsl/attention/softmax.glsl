// A set of scores is summarised by a pair (maximum, sum of exp(score - maximum)). merge_softmax returns the pair of the
// union of two sets from their pairs (Milakov and Gimelshein 2018).
// NOTHING is the pair of no scores. Its maximum is a finite constant below every score, since the difference of two
// infinities is NaN.
const vec2 NOTHING = vec2(-3.0e38, 0.0);

vec2 merge_softmax(vec2 a, vec2 b) {
  float m = max(a.x, b.x);
  return vec2(m, a.y * exp(a.x - m) + b.y * exp(b.x - m));
}

// Returns the pair of the first `lanes` values of a texel.
vec2 texel_softmax(vec4 v, int lanes) {
  bvec4 in_use = lessThan(ivec4(0, 1, 2, 3), ivec4(lanes));
  v = mix(vec4(NOTHING.x), v, in_use);
  float m = max(max(v.x, v.y), max(v.z, v.w));
  return vec2(m, dot(exp(v - m), vec4(in_use)));
}
