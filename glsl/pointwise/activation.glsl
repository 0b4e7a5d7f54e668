// The activation functions that models use; ACT is the number of the function. ACT 1 is gelu_new (Hendrycks and Gimpel
// 2016, the tanh form). It is computed with 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), which cannot overflow to NaN.
#include "finite.glsl"
#if ACT == 1
float act1(float x) { return x / (1.0 + exp(min(-1.5957691216 * (x + 0.044715 * x * x * x), 88.0))); }
#elif ACT == 2
// ACT 2 is the exact GELU, x times the normal cdf. The cdf is 0.5 erfc(-x / sqrt 2). For z >= 0, erfc(z) is computed as
// t exp(-z z + ERFC(2 t - 1)), with t = 1 / (1 + z / 2) and a polynomial ERFC.
float normal_cdf(float x) {
  float z = abs(x) * 0.70710678118;
  float t = 1.0 / (1.0 + 0.5 * z), s = 2.0 * t - 1.0;
  float tail = 0.5 * t * exp(max(-z * z + ERFC(s), -88.0));
  return x < 0.0 ? tail : 1.0 - tail;
}
float act1(float x) { return x * normal_cdf(x); }
#elif ACT == 4  // SiLU (Elfwing et al. 2017)
float act1(float x) { return x / (1.0 + exp(min(-x, 88.0))); }
#elif ACT == 5  // squared ReLU (So et al. 2021)
float act1(float x) { return x > 0.0 || !finite(x) ? x * x : 0.0; }
#elif ACT == 6  // soft cap: CAP * tanh(x / CAP)
float act1(float x) { return finite(x) ? CAP * (1.0 - 2.0 / (1.0 + exp(min(x * (2.0 / CAP), 80.0)))) : x; }
#elif ACT == 3
float act1(float x) { return x > 0.0 || !finite(x) ? x : 0.0; }
#endif
#if ACT == 0
vec4 act(vec4 v) { return v; }
#else
vec4 act(vec4 v) { return vec4(act1(v.x), act1(v.y), act1(v.z), act1(v.w)); }
#endif
