// The search of top-p. The nucleus is the smallest set of the likeliest tokens whose weights add up to at least top_p
// of the total weight; the search narrows the range of logits in which the nucleus ends. The weight of a token is
// exp((logit - greatest) / temperature). Each level of the search has a bracket (a range of logits that contains the
// end), which 15 edges divide. For each edge, `nucleus_weights.frag` adds up the weights of the tokens at or above it.
// M1 to M4 hold these sums for the levels so far, and the weight of all tokens. A sum is spread over the rows of its
// texture, which are added up here.
const float LEAST = -3.0e38;

// A bracket is (upper, top, width, weight). The tokens with logits of at least `upper` have the total weight `weight`,
// which is less than top_p of the weight of all tokens. The edges of the bracket are at steps of `width` / 16 below
// `top`. The width is a power of two, so that all passes that compute an edge get the same bits.
float edge(vec4 bracket, int i) { return bracket.y - bracket.z / 16.0 * float(i); }

vec4 narrowed(vec4 bracket, vec4 m[4]) {
  float wanted = top_p * m[3].w;
  vec4 found = vec4(bracket.xy, bracket.z / 16.0, bracket.w);
  for (int i = 0; i < 15; i++) {
    float weight = m[i / 4][i % 4];
    if (weight >= wanted) return found;
    found.xy = vec2(edge(bracket, i + 1));
    found.w = weight;
  }
  return vec4(found.xy, bracket.z, found.w);
}

#define NARROWED(M, ROWS) { \
    vec4 m[4]; \
    for (int k = 0; k < 4; k++) { \
      m[k] = vec4(0.0); \
      for (int y = 0; y < ROWS; y++) m[k] += M(0, y, k); \
    } \
    bracket = narrowed(bracket, m); \
  }
vec4 bracket() {
  vec4 bracket = vec4(3.0e38, BEST(0, 0, 0).y, nucleus_width, 0.0);
#ifdef M1_W
  NARROWED(M1, M1_H)
#endif
#ifdef M2_W
  NARROWED(M2, M2_H)
#endif
#ifdef M3_W
  NARROWED(M3, M3_H)
#endif
#ifdef M4_W
  NARROWED(M4, M4_H)
#endif
  return bracket;
}
