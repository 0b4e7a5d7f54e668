// (norm, clipping factor min(1, CLIP / norm), 1 if the norm is finite else 0, 0) from the sum of squares.
void main() {
  vec4 v[1];
  float norm = sqrt(X(0, 0, 0).x);
  bool finite = (floatBitsToUint(norm) & 0x7f800000u) != 0x7f800000u;
  v[0] = vec4(norm, CLIP > 0.0 ? min(1.0, CLIP / (norm + 1.0e-6)) : 1.0, finite ? 1.0 : 0.0, 0.0);
  STORE_Y(v)
}
