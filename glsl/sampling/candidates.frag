// Finds the 4 likeliest tokens of each block of a row of logits, the likeliest first; of equal logits, the first one
// counts as likelier. Adjacent tokens, such as digits, are often likely together. So that they are in different blocks,
// a block is one component of every STRIDE-th texel. The first two targets hold four pairs (logit, id). An id is -1 if
// the block has no more tokens; 0.5 is added to the fourth id if the block has more than four tokens. The last target
// holds the block's sum of exp(logit - greatest logit of the row). With M1 (sums of `nucleus_weights.frag`), only
// tokens with logits below `upper` of the bracket (`nucleus.glsl`) are candidates. Four texels are fetched at once.
#include "nucleus.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 best = vec4(LEAST), id = vec4(-1.0), plain = vec4(0.0);
  bool more = false;
  float greatest = BEST(0, 0, 0).y;
#ifdef M1_W
  float upper = bracket().x;
#else
  float upper = 3.0e38;
#endif
  int block = p.y * Y_W + p.x, lane = block % 4;
  for (int first = block / 4; first < C4; first += 4 * STRIDE) {
    ivec4 c4 = first + ivec4(0, 1, 2, 3) * STRIDE, ids = 4 * c4 + lane;
    vec4 x;
    for (int k = 0; k < 4; k++) x[k] = x_at(0, min(c4[k], C4 - 1))[lane];
    bvec4 beyond = greaterThanEqual(ids, ivec4(X_COLS));
    plain += mix(exp(x - greatest), vec4(0.0), beyond);
    x = mix(x, vec4(LEAST), beyond);
    for (int k = 0; k < 4; k++) {
      float value = x[k], its = float(ids[k]);
      if (!(value > LEAST && value < upper)) continue;
      more = more || id.w >= 0.0;
      if (value <= best.w) continue;
      bvec4 after = lessThan(best, vec4(value));  // the pairs with smaller logits, which move back by one
      vec4 moved = vec4(value, best.xyz), moved_id = vec4(its, id.xyz);
      moved.yzw = mix(vec3(value), moved.yzw, after.xyz);
      moved_id.yzw = mix(vec3(its), moved_id.yzw, after.xyz);
      best = mix(best, moved, after);
      id = mix(id, moved_id, after);
    }
  }
  if (more) id.w += 0.5;
  vec4 v[3];
  v[0] = vec4(best.x, id.x, best.y, id.y);
  v[1] = vec4(best.z, id.z, best.w, id.w);
  v[2] = vec4(dot(plain, vec4(1.0)), 0.0, 0.0, 0.0);
  STORE_Y(v)
}
