// A texel holds sixteen signed levels, placed as in `q8.glsl`. 16 rows share a scale and a minimum, which are float32.
#define q2_k_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
