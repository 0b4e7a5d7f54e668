// One row times a matrix, its inner dimension cut into parts: y = x[part of K] w[part of K, two column texels].
// Pixels walk the columns in blocks of 4 x BY, so that the pixels a driver runs together read one stretch of a row.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int column = p.x / 4 * (4 * BY) + p.y % BY * 4 + p.x % 4, part = p.y / BY;
  vec4 acc[2];
  acc[0] = acc[1] = vec4(0.0);
#ifdef W_F16
  ivec2 at = ivec2(min(column / W_W, W_TC / 2 - 1), column % W_W);  // (layer in a row of tiles, texel)
#else
#if NEAR
  int c0 = min(2 * column, W_W * W_TC - 1), c1 = min(2 * column + 1, W_W * W_TC - 1);
#else
  int c0 = min(column, W_W * W_TC - 1), c1 = min(column + HALF, W_W * W_TC - 1);
#endif
  ivec2 at0 = ivec2(c0 / W_W, c0 % W_W), at1 = ivec2(c1 / W_W, c1 % W_W);
#endif
  int end = min((part + 1) * PART, K4);
  for (int k4 = part * PART; k4 < end; k4++) {
    vec4 x = x_at(0, k4);
    int tile = W_TR == 1 ? 0 : 4 * k4 / W_H, row = 4 * k4 - tile * W_H;
    // Row by row: the texels of one row lie in the same page, those of one column do not (2x on software GL).
#ifdef W_F16
#define ROW(lane, o) { uvec4 t = W(tile * (W_TC / 2) + at.x, row + o, at.y); \
    acc[0] += x.lane * even_half(t); acc[1] += x.lane * odd_half(t); }
#else
#define ROW(lane, o) acc[0] += x.lane * W(tile * W_TC + at0.x, row + o, at0.y); \
    acc[1] += x.lane * W(tile * W_TC + at1.x, row + o, at1.y);
#endif
    ROW(x, 0) ROW(y, 1) ROW(z, 2) ROW(w, 3)
  }
  STORE_Y(acc)
}
