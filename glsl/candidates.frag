// The likeliest N_BEST tokens of each block of a row of logits, best first; of equals the first wins. A block is every
// BLOCKS-th texel. Targets hold pairs (logit, id), id -1 where the block has no more; the last one also the block's sums
// of exp(logit - greatest), with temperature and without. With M1_W only tokens below the bracket of `nucleus.glsl` count.
#include "nucleus.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int block = p.y * Y_W + p.x;
  float best[N_BEST], id[N_BEST];
  for (int i = 0; i < N_BEST; i++) {
    best[i] = LEAST;
    id[i] = -1.0;
  }
  float greatest = BEST(0, 0, 0).y;
#ifdef M1_W
  float upper = bracket().x;
#else
  float upper = 3.0e38;
#endif
  vec4 tempered = vec4(0.0), plain = vec4(0.0);
  for (int first = block; first < C4; first += AT_ONCE * BLOCKS) {
    vec4 x[AT_ONCE];  // fetched together, since what follows branches
    for (int n = 0; n < AT_ONCE; n++) {
      int c4 = first + n * BLOCKS;
      x[n] = x_at(0, min(c4, C4 - 1));
      bvec4 beyond = greaterThanEqual(4 * c4 + ivec4(0, 1, 2, 3), ivec4(X_COLS));
      tempered += mix(exp((x[n] - greatest) * inverse_temperature), vec4(0.0), beyond);
      plain += mix(exp(x[n] - greatest), vec4(0.0), beyond);
      x[n] = mix(x[n], vec4(LEAST), beyond);
    }
    for (int n = 0; n < AT_ONCE; n++) {
      if (!any(greaterThan(x[n], vec4(best[N_BEST - 1])))) continue;
      for (int lane = 0; lane < 4; lane++) {
        float value = x[n][lane], its = float(4 * (first + n * BLOCKS) + lane);
        if (!(value > best[N_BEST - 1] && value < upper)) continue;
        bool moved = false;
        for (int i = 0; i < N_BEST; i++) {
          moved = moved || value > best[i];
          float old_value = best[i], old_id = id[i];
          best[i] = moved ? value : old_value;
          id[i] = moved ? its : old_id;
          value = moved ? old_value : value;
          its = moved ? old_id : its;
        }
      }
    }
  }
  vec4 v[Y_N];
  for (int t = 0; t < Y_N - 1; t++) v[t] = vec4(best[2 * t], id[2 * t], best[2 * t + 1], id[2 * t + 1]);
  v[Y_N - 1] = vec4(best[N_BEST - 1], id[N_BEST - 1], dot(tempered, vec4(1.0)), dot(plain, vec4(1.0)));
  STORE_Y(v)
}
