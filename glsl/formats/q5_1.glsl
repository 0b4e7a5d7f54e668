// A texel holds sixteen levels of eight bits, placed as in `q8.glsl`. Unlike in q8, levels are 0 to 255, and each group
// of rows has a minimum.
#define q5_1_decode(t, tile) vec4(ivec4(((t) >> uint(8 * (tile))) & 255u))
