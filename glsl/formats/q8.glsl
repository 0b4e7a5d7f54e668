// A texel holds sixteen levels (quantised weights), which are signed integers of eight bits: four columns of each of
// four column tiles. A component of the texel holds one column of every tile, with the first tile in the lowest bits.
#define q8_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
