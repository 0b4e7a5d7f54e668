// The gradient of an activation function: y = dy act'(x).
#include "activation.glsl"
#if ACT == 1
// Derivative of gelu_new. For |x| > 10 the magnitude of the second term is below 1e-35; the clamps prevent overflows in
// its factors.
float slope1(float x) {
  float square = min(x * x, 100.0), g = 1.0 / (1.0 + exp(min(-1.5957691216 * (x + 0.044715 * x * x * x), 88.0)));
  return g + clamp(x, -10.0, 10.0) * g * (1.0 - g) * 1.5957691216 * (1.0 + 0.134145 * square);
}
#elif ACT == 2
float slope1(float x) { return normal_cdf(x) + x * 0.39894228040 * exp(max(-0.5 * x * x, -88.0)); }
#elif ACT == 4
float slope1(float x) {
  float g = 1.0 / (1.0 + exp(min(-x, 88.0)));
  return g + clamp(x, -88.0, 88.0) * g * (1.0 - g);
}
#elif ACT == 5
float slope1(float x) { return 2.0 * max(x, 0.0); }
#elif ACT == 6
float slope1(float x) {
  float g = 1.0 / (1.0 + exp(min(x * (2.0 / CAP), 80.0)));
  return 4.0 * g * (1.0 - g);
}
#else
float slope1(float x) { return x > 0.0 ? 1.0 : 0.0; }
#endif
vec4 slope(vec4 v) { return vec4(slope1(v.x), slope1(v.y), slope1(v.z), slope1(v.w)); }

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 v[Y_N];
#define APPLY(n, i, j) { \
    int row = min(i * Y_H + p.y, Y_ROWS - 1), c4 = j * Y_W + p.x; \
    v[n] = 4 * c4 < Y_COLS ? dy_at(row, c4) * slope(x_at(row, c4)) : vec4(0.0); \
  }
  Y_TILES(APPLY)
  STORE_Y(v)
}
