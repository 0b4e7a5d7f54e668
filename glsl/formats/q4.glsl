// A texel holds 32 levels (quantised weights) from 0 to 15: four columns of each of eight column tiles. A component of
// the texel holds one column of every tile, with the first tile in the lowest bits.
#define q4_decode(t, tile) vec4(ivec4(((t) >> uint(4 * (tile))) & 15u))
