// Computes, for each block (every BLOCKS-th texel) of a row of logits, the total weight of the block's tokens at or
// above each of 15 edges, and that of all tokens of the block (see `nucleus.glsl`).
#include "nucleus.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  float greatest = BEST(0, 0, 0).y;
  vec4 b = bracket(), edges[Y_N], v[Y_N];
  for (int t = 0; t < Y_N; t++) {
    edges[t] = vec4(edge(b, 4 * t + 1), edge(b, 4 * t + 2), edge(b, 4 * t + 3), edge(b, 4 * t + 4));
    v[t] = vec4(0.0);
  }
  edges[Y_N - 1].w = LEAST;
  for (int c4 = p.y * Y_W + p.x; c4 < C4; c4 += BLOCKS) {
    vec4 x = x_at(0, c4), weight = exp((x - greatest) * inverse_temperature);
    weight = mix(weight, vec4(0.0), greaterThanEqual(4 * c4 + ivec4(0, 1, 2, 3), ivec4(X_COLS)));
    for (int lane = 0; lane < 4; lane++) {
      for (int t = 0; t < Y_N; t++) v[t] += vec4(greaterThanEqual(vec4(x[lane]), edges[t])) * weight[lane];
    }
  }
  STORE_Y(v)
}
