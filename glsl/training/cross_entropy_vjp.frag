// The gradient of the loss: dx = (softmax(x) - one_hot(target)) * SCALE, times the loss scale if there is one. dx is
// zero in rows with a negative target. ROWS is the output of `cross_entropy.frag`.
#ifdef LOSS_SCALE_W
#define TIMES SCALE * LOSS_SCALE(0, 0, 0).x
#else
#define TIMES SCALE
#endif

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = vec4(0.0); \
    if (4 * c4 < Y_COLS) { \
      vec4 r = ROWS(0, row, 0); \
      ivec4 c = 4 * c4 + ivec4(0, 1, 2, 3); \
      v[n] = (exp(x_at(row, c4) - r.z) - vec4(equal(c, ivec4(int(r.w))))) * vec4(lessThan(c, ivec4(Y_COLS))) * (r.y * TIMES); \
    } \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
