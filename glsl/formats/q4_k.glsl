// A texel holds 32 levels from 0 to 15, placed as in `q4.glsl`. Unlike in q4, scales and minima are float32.
#define q4_k_decode(t, tile) vec4(ivec4(((t) >> uint(4 * (tile))) & 15u))
