// A texel holds eight float16 of two column tiles: components x and y hold the four values of tile 0, and z and w those
// of tile 1.
#ifdef NO_PACKING
// IEEE 754 conversions in integer operations, for drivers that do not have packHalf2x16, and for Mesa's software
// drivers, where packHalf2x16 takes twice as long.

// Converts four float16 numbers: `magnitude` is the exponent and the fraction, shifted left by 13 bits. The addition
// and the multiplication give m, which is the correct float32 for normal numbers, infinities and NaN. For a subnormal
// number f * 2^-24, m is (1 + f / 1024) * 2^-15, and 2 m - 2^-14 is correct. For a normal number, 2 m - 2^-14 is at
// least m, so the smaller of m and 2 m - 2^-14 is always correct. The two are compared as integers, since the bits of
// positive floats have the same order as the floats.
vec4 halves_to_floats(uvec4 magnitude, uvec4 sign_bit) {
  vec4 m = uintBitsToFloat(magnitude + 0x70000000u) * 1.9259299443872359e-34;  // 2^-112
  uvec4 bits = min(floatBitsToUint(m), floatBitsToUint(m + m - 6.103515625e-5));
  return uintBitsToFloat(bits | sign_bit);
}
float half_to_float(uint bits) {
  return halves_to_floats(uvec4((bits & 0x7fffu) << 13u), uvec4((bits << 16u) & 0x80000000u)).x;
}
vec4 unpack_four(uvec2 t) {
  uvec2 low = (t & 0x7fffu) << 13u, high = (t >> 3u) & 0x0fffe000u;
  uvec2 low_sign = (t << 16u) & 0x80000000u, high_sign = t & 0x80000000u;
  return halves_to_floats(uvec4(low.x, high.x, low.y, high.y), uvec4(low_sign.x, high_sign.x, low_sign.y, high_sign.y));
}

// Returns the bits of the nearest float16; of two that are equally near, the one with an even fraction.
uint float_to_half(float v) {
  uint bits = floatBitsToUint(v), sign_bit = (bits >> 16u) & 0x8000u, a = bits & 0x7fffffffu;
  if (a > 0x7f800000u) return sign_bit | 0x7c00u | max((a >> 13u) & 1023u, 1u);  // NaN
  if (a >= 0x477ff000u) return sign_bit | 0x7c00u;  // 65520 and above
  if (a >= 0x38800000u) return sign_bit | ((a - 0x38000000u + 0xfffu + ((a >> 13u) & 1u)) >> 13u);
  if (a <= 0x33000000u) return sign_bit;  // 2^-25 and below
  uint shift = 126u - (a >> 23u), f = (a & 0x7fffffu) | 0x800000u;  // subnormal: multiples of 2^-24
  uint n = f >> shift, rest = f & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
  return sign_bit | (n + (rest > tie || (rest == tie && (n & 1u) == 1u) ? 1u : 0u));
}
uvec2 pack_four(vec4 v) {
  return uvec2(float_to_half(v.x) | (float_to_half(v.y) << 16u), float_to_half(v.z) | (float_to_half(v.w) << 16u));
}
#else
float half_to_float(uint bits) { return unpackHalf2x16(bits).x; }
vec4 unpack_four(uvec2 t) { return vec4(unpackHalf2x16(t.x), unpackHalf2x16(t.y)); }
// Some drivers round towards zero (Direct3D's rules), so that values beyond the range of float16 become 65504. Setting
// all bits of the exponent makes such values NaN instead, so that training finds steps whose gradients overflow. On
// drivers that round to nearest, such values are infinite and stay so.
uvec2 pack_four(vec4 v) {
  uvec4 over = uvec4(greaterThanEqual(abs(v), vec4(65520.0))) * 0x7c00u;
  return uvec2(packHalf2x16(v.xy) | over.x | (over.y << 16u), packHalf2x16(v.zw) | over.z | (over.w << 16u));
}
#endif

#define f16_decode(t, tile) unpack_four((tile) == 0 ? (t).xy : (t).zw)
#define f16_encode(a, b) uvec4(pack_four(a), pack_four(b))
float f16_one(uvec4 t, int tile, int c) {
  uvec2 four = tile == 0 ? t.xy : t.zw;
  return half_to_float(((c & 2) == 0 ? four.x : four.y) >> uint(16 * (c & 1)));
}
