// Returns (cosine, sine) of an angle in radians. Uses polynomials over a quarter turn, because the built-in functions
// have errors of up to 2^-11 on some devices. Subtracts n quarter turns from the angle. A quarter turn is the sum of
// three constants; n times the first constant, 1.5703125, is exact, so the subtraction loses no precision.
vec2 on_circle(float angle) {
  float n = floor(angle * 0.63661977237 + 0.5);
  float r = ((angle - n * 1.5703125) - n * 4.83751296997e-4) - n * 7.54978995489e-8, q = r * r;
  float s = r + r * q * (-1.6666654611e-1 + q * (8.3321608736e-3 - q * 1.9515295891e-4));
  float c = 1.0 - 0.5 * q + q * q * (4.166664568e-2 + q * (-1.388731625e-3 + q * 2.443315711e-5));
  int quarter = int(n) & 3;
  vec2 y = (quarter & 1) == 0 ? vec2(c, s) : vec2(-s, c);
  return quarter < 2 ? y : -y;
}
