// Writes a row x as a residual stream in blocks (see `stream.glsl`). The row is divided into STRIDES parts of STRIDE
// texels. Without PAIRS, the first band gets the values of x, and the other bands get zeros, since readers add up the
// bands.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int column = p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4;
  vec4 v[Y_N];
#ifdef PAIRS
#define STORE_COLUMN(n, i, j) v[n] = 2 * j + p.y < STRIDES ? x_at(0, (2 * j + p.y) * STRIDE + p.x) : vec4(0.0);
#else
#define STORE_COLUMN(n, i, j) v[n] = column < STRIDE && p.y < BY ? x_at(0, j * STRIDE + column) : vec4(0.0);
#endif
  Y_TILES(STORE_COLUMN)
  STORE_Y(v)
}
