// Finds the token with the greatest score in each block, among the tokens that the threshold keeps: texel = (score, id,
// logit, weight of the block's kept tokens); id is -1 if no token of the block is kept. A token's score is
// (logit - greatest) / temperature - log(E), where E is a random number with an exponential distribution. So the token
// with the greatest score of all blocks is a sample from the softmax (Gumbel-max). A block is every BLOCKS-th texel of
// a row of logits. Each group of BLOCK_ROWS rows of pixels makes a separate draw, with random numbers for its own step.
#include "hash.glsl"
#include "threshold.glsl"

// Returns -log(1 - u) for four random numbers u, uniform in (0, 1); the results are exponentially distributed. A series
// computes small results, which must be precise because they give the greatest scores.
vec4 exponential(uvec4 bits) {
  vec4 u = (vec4(bits) + 0.5) * 2.3283064365386963e-10;  // 2^-32
  return mix(-log(1.0 - min(u, 0.99999994)), u * (1.0 + 0.5 * u), lessThan(u, vec4(1e-3)));
}

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int step_ = draw_step + p.y / BLOCK_ROWS;
  vec4 threshold = found_threshold(), sum = vec4(0.0), best = vec4(-3.0e38, -1.0, 0.0, 0.0), v[1];
  for (int c4 = p.y % BLOCK_ROWS * Y_W + p.x; c4 < C4; c4 += BLOCKS) {
    vec4 x = x_at(0, c4), scaled = (x - threshold.z) * inverse_temperature;
    ivec4 id = 4 * c4 + ivec4(0, 1, 2, 3);
    vec4 above = vec4(greaterThan(x, vec4(threshold.x)));
    vec4 level = vec4(equal(x, vec4(threshold.x))) * vec4(lessThanEqual(vec4(id), vec4(threshold.y)));
    bvec4 kept = notEqual((above + level) * vec4(lessThan(id, ivec4(X_COLS))), vec4(0.0));
    sum += mix(vec4(0.0), exp(scaled), kept);
    vec4 score = scaled - log(exponential(hash(uvec4(uint(draw_seed), uint(step_), SITE, uint(c4)))));
    for (int lane = 0; lane < 4; lane++) {
      if (kept[lane] && (best.y < 0.0 || score[lane] > best.x)) best.xyz = vec3(score[lane], float(id[lane]), x[lane]);
    }
  }
  v[0] = vec4(best.xyz, dot(sum, vec4(1.0)));
  STORE_Y(v)
}
