// A texel holds sixteen levels (quantised weights) with a sign, placed as in `q8.glsl`. 16 rows share a scale and a
// minimum, both float32.
#define q2_k_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
