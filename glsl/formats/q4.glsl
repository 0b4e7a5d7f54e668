// 32 levels from 0 to 15, of eight column tiles: each component holds a column of every tile, the first tile in the lowest
// bits.
#define q4_decode(t, tile) vec4(ivec4(((t) >> uint(4 * (tile))) & 15u))
