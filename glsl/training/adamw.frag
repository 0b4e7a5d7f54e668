// A step of AdamW (Loshchilov and Hutter 2019). m (exp_avg) is the running average of the clipped gradients, and s
// (exp_avg_sq) is the running average of their squares. Weight decay changes the parameters directly, not the
// gradients. If the norm of all gradients (NORM) is not finite, parameters and averages stay unchanged.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 w[Y_N], m[Y_N], s[Y_N];
  vec4 norm = NORM(0, 0, 0);  // (norm, factor for gradients, 1 if finite, 0)
#define UPDATE(n, i, j) { \
    int row = i * Y_H + p.y, c4 = j * Y_W + p.x; \
    w[n] = X(i * X_TC + j, p.y, p.x); \
    m[n] = M(i * X_TC + j, p.y, p.x); \
    s[n] = S(i * X_TC + j, p.y, p.x); \
    if (norm.z > 0.0 && row < G_ROWS && 4 * c4 < G_COLS) { \
      vec4 g = g_at(row, c4) * norm.y; \
      m[n] += (g - m[n]) * (1.0 - BETA1); \
      s[n] += (g * g - s[n]) * (1.0 - BETA2); \
      w[n] -= lr * (DECAY * w[n] + m[n] * unbias1 / (sqrt(s[n] * unbias2) + EPSILON)); \
    } \
  }
  Y_TILES(UPDATE)
  STORE_Y(w)
  STORE_EXP_AVG(m)
  STORE_EXP_AVG_SQ(s)
}
