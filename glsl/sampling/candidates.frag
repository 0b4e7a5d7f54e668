// Finds the likeliest 4 tokens of each block of a row of logits, best first; of equal logits the first one wins. A block is
// every BLOCKS-th texel. The first two targets hold pairs (logit, id); id is -1 if the block has no more tokens, and 0.5 is
// added to the fourth id if it has more than four. The last target holds the block's sums of exp(logit - greatest), with
// temperature and without. With M1_W, only tokens below the bracket of `nucleus.glsl` count.
#include "nucleus.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 best = vec4(LEAST), id = vec4(-1.0), tempered = vec4(0.0), plain = vec4(0.0);
  bool more = false;
  float greatest = BEST(0, 0, 0).y;
#ifdef M1_W
  float upper = bracket().x;
#else
  float upper = 3.0e38;
#endif
  for (int c4 = p.y * Y_W + p.x; c4 < C4; c4 += BLOCKS) {
    vec4 x = x_at(0, c4);
    bvec4 beyond = greaterThanEqual(4 * c4 + ivec4(0, 1, 2, 3), ivec4(X_COLS));
    tempered += mix(exp((x - greatest) * inverse_temperature), vec4(0.0), beyond);
    plain += mix(exp(x - greatest), vec4(0.0), beyond);
    x = mix(x, vec4(LEAST), beyond);
    for (int lane = 0; lane < 4; lane++) {
      float value = x[lane], its = float(4 * c4 + lane);
      if (!(value > LEAST && value < upper)) continue;
      more = more || id.w >= 0.0;
      if (value <= best.w) continue;
      bvec4 after = lessThan(best, vec4(value));  // the places from the one where it is inserted
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
  v[2] = vec4(dot(tempered, vec4(1.0)), dot(plain, vec4(1.0)), 0.0, 0.0);
  STORE_Y(v)
}
