// The beginning of every recorded shader: sets the precision, and defines macros that fetch and convert texels. The
// files in `formats/` decode the values of a texel. The player's device defines FETCH_LOD and STORAGE_UINT. After this
// file, the recorder defines the accessors of each input and output, such as X, x_at and STORE_Y
// (`glgpt/program/shader.py`). In the comments of shaders, "with NAME" means: if the macro NAME is defined, or if the
// pass has an input of this name.
precision highp float;
precision highp int;
precision highp sampler2DArray;
precision highp usampler2DArray;

#ifdef FETCH_LOD
// Samples the centre of a texel, so that NEAREST returns exactly this texel; `step` is 1 / (size of the texture).
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
