// A texel holds sixteen signed levels, placed as in `q8.glsl`. Unlike in q8, scales are float32, and 16 rows share one.
#define q6_k_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
