// A texel holds sixteen signed levels of eight bits, four columns of each of four column tiles. A component holds one
// column of every tile, with the first tile in the lowest bits.
#define q8_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
