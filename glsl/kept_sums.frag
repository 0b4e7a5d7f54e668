// What the kept tokens of each block weigh; a block is every BLOCKS-th texel of a row of logits.
#include "kept.glsl"

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 sum = vec4(0.0), v[1];
  for (int c4 = p.y * Y_W + p.x; c4 < C4; c4 += BLOCKS) sum += kept_weights(c4);
  v[0] = vec4(dot(sum, vec4(1.0)), 0.0, 0.0, 0.0);
  STORE_Y(v)
}
