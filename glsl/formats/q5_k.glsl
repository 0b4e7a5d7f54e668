// Sixteen levels from 0 to 255, of four column tiles, like those of q8 but for their scales and sign.
#define q5_k_decode(t, tile) vec4(ivec4(((t) >> uint(8 * (tile))) & 255u))
