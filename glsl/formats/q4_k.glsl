// 32 levels from 0 to 15, of eight column tiles, like those of q4 but for their scales.
#define q4_k_decode(t, tile) vec4(ivec4(((t) >> uint(4 * (tile))) & 15u))
