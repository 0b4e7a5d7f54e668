// Top-p: the search for the logit at which the nucleus ends. Each level weighs the tokens at 15 edges below the last
// level's, and all of them; M1, M2, M3 are the weights that the levels so far found, four texels each.
const float LEAST = -3.0e38;

// A bracket is (upper, top, width, weight): tokens of `upper` and above weigh less than top_p of all, `weight`, and the
// next edges are `width` / 16 apart below `top`. A width is a power of two, so that an edge has the same bits wherever
// it is computed.
float edge(vec4 bracket, int i) { return bracket.y - bracket.z / 16.0 * float(i); }

vec4 narrowed(vec4 bracket, vec4 m0, vec4 m1, vec4 m2, vec4 m3) {
  float m[16] = float[16](m0.x, m0.y, m0.z, m0.w, m1.x, m1.y, m1.z, m1.w, m2.x, m2.y, m2.z, m2.w, m3.x, m3.y, m3.z, m3.w);
  float wanted = top_p * m[15];
  vec4 found = vec4(bracket.xy, bracket.z / 16.0, bracket.w);
  for (int i = 0; i < 15; i++) {
    if (m[i] >= wanted) return found;
    found.xy = vec2(edge(bracket, i + 1));
    found.w = m[i];
  }
  return vec4(found.xy, bracket.z, found.w);
}

#define NARROWED(M) bracket = narrowed(bracket, M(0, 0, 0), M(0, 0, 1), M(0, 0, 2), M(0, 0, 3));
vec4 bracket() {
  vec4 bracket = vec4(3.0e38, BEST(0, 0, 0).y, nucleus_width, 0.0);
#ifdef M1_W
  NARROWED(M1)
#endif
#ifdef M2_W
  NARROWED(M2)
#endif
#ifdef M3_W
  NARROWED(M3)
#endif
  return bracket;
}
