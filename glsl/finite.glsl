// Finds NaN and infinity by their bits, since a compiler may assume that no float is NaN or infinite.
#ifndef INFINITY
#define INFINITY uintBitsToFloat(0x7f800000u)

bool finite(float x) { return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u; }

// Returns x with -infinity replaced by +infinity: a softmax gives -infinity no weight, which would hide an overflow.
vec4 overflow_kept(vec4 x) {
  return mix(x, abs(x), equal(floatBitsToUint(x) & 0x7f800000u, uvec4(0x7f800000u)));
}
#endif
