// A texel holds sixteen signed levels, as in q8. Unlike in q8, scales are float32, and a group has 16 rows.
#define q6_k_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
