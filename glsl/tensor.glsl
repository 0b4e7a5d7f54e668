// What every shader shares: precision, how a texel is fetched and stored, and packed halves.
// A device chooses FETCH_LOD and STORAGE_UINT; the recorder defines the accessors of each sampler after this.
precision highp float;
precision highp int;
precision highp sampler2DArray;
precision highp usampler2DArray;

#ifdef FETCH_LOD
// The texel's centre, so that NEAREST finds exactly this texel; `step` is 1/size.
#define FETCH(s, step, x, y, l) textureLod(s, vec3((vec2(x, y) + 0.5) * step, float(l)), 0.0)
#else
#define FETCH(s, step, x, y, l) texelFetch(s, ivec3(x, y, l), 0)
#endif

#ifdef STORAGE_UINT
#define FLOAT_SAMPLER usampler2DArray
#define FLOAT_TEXEL uvec4
#define TO_FLOAT(t) uintBitsToFloat(t)
#define FROM_FLOAT(v) floatBitsToUint(v)
#else
#define FLOAT_SAMPLER sampler2DArray
#define FLOAT_TEXEL vec4
#define TO_FLOAT(t) (t)
#define FROM_FLOAT(v) (v)
#endif

vec4 even_half(uvec4 t) { return vec4(unpackHalf2x16(t.x), unpackHalf2x16(t.y)); }
vec4 odd_half(uvec4 t) { return vec4(unpackHalf2x16(t.z), unpackHalf2x16(t.w)); }
uvec4 pack_halves(vec4 even, vec4 odd) {
  return uvec4(packHalf2x16(even.xy), packHalf2x16(even.zw), packHalf2x16(odd.xy), packHalf2x16(odd.zw));
}
