// Sixteen signed levels, like those of q8 but for their scales.
#define q6_k_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
