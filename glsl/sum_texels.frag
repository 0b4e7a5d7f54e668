// Texel i is the sum of all texels of layer i.
void main() {
  int layer = int(gl_FragCoord.x);
  vec4 v[1];
  v[0] = vec4(0.0);
  for (int y = 0; y < X_H; y++) {
    for (int k = 0; k < X_W; k++) v[0] += X(layer, y, k);
  }
  STORE_Y(v)
}
