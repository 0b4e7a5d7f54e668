// Adds up the texels of each row of each layer of x: texel k in row r of y = the sum of row r of layer k of x.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[1];
  v[0] = vec4(0.0);
  for (int k = 0; k < X_W; k++) v[0] += X(p.x, p.y, k);
  STORE_Y(v)
}
