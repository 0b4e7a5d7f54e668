// The search of top-p for its nucleus: the smallest set of the likeliest tokens whose weights add up to at least top_p
// of the total weight. The weight of a token is exp((logit - greatest) / temperature). The search narrows a range of
// logits, the bracket, that contains the least logit of the nucleus. At each level of the search, 15 edges divide the
// bracket into 16 equal ranges. For each edge, `nucleus_weights.frag` adds up the weights of the tokens at or above the
// edge. M1 to M4 are textures with these 15 sums, and the weight of all tokens, for levels 1 to 4, as far as they have
// been computed. Each row of a texture has a part of each sum; this file adds up the rows.
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
