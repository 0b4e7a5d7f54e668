// A texel holds sixteen levels from 0 to 255, placed as in `q8.glsl`. Unlike in q5_1, scales and minima are float32.
#define q5_k_decode(t, tile) vec4(ivec4(((t) >> uint(8 * (tile))) & 255u))
