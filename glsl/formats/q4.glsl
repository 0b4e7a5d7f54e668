// 32 integers of four bits, of eight column tiles: each component holds a column of every tile, the first tile in the lowest
// bits.
#define q4_decode(t, tile) vec4(ivec4((t) << uint(28 - 4 * (tile))) >> 28)
