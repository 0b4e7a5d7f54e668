// Sixteen signed levels of eight bits, of four column tiles: each component holds a column of every tile, the first tile in
// the lowest bits.
#define q8_decode(t, tile) vec4(ivec4((t) << uint(24 - 8 * (tile))) >> 24)
