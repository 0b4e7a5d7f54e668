// Texel k of a row of y is the sum of all texels of the same row of layer k of x.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[1];
  v[0] = vec4(0.0);
  for (int k = 0; k < X_W; k++) v[0] += X(p.x, p.y, k);
  STORE_Y(v)
}
