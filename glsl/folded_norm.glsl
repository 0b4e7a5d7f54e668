// The product of a normed row with w, from the product of the row itself: for x' = (x - mean) / deviation * gain + bias,
// x' w = ((x gain) w - mean (gain w)) / deviation + bias w. GAIN_W and BIAS_W hold gain w and bias w (+ the layer's own).
// MOMENTS holds (mean, squared deviations, count) of parts of the row; they are added without a running division.
vec2 mean_and_scale() {
  float sum = 0.0, squares = 0.0;
  for (int i = 0; i < MOMENTS_W; i++) {
    vec4 m = MOMENTS(0, 0, i);
    sum += m.x * m.z;
  }
  float mean = sum / float(WIDTH);
  for (int i = 0; i < MOMENTS_W; i++) {
    vec4 m = MOMENTS(0, 0, i);
    float d = m.x - mean;
    squares += m.y + m.z * d * d;
  }
  return vec2(mean, 1.0 / sqrt(squares / float(WIDTH) + EPSILON));
}

vec4 normed(vec4 product, int c4, vec2 row) {
  return (product - row.x * gain_w_at(0, c4)) * row.y + bias_w_at(0, c4);
}
