// The scales of a group of rows: eight bfloat16 of two column tiles. A bfloat16 is the upper half of a float.
vec4 scales_decode(uvec4 t, int tile) {
  uvec2 pairs = tile == 0 ? t.xy : t.zw;
  return uintBitsToFloat(uvec4(pairs.x << 16, pairs.x & 0xffff0000u, pairs.y << 16, pairs.y & 0xffff0000u));
}
