// A texel of the row that `attend_row` left by ranges of keys: their mean, weighed by each range's summed exponentials.
vec4 attended(int c4) {
  float greatest = LOGS(0, 0, c4).x, total = 1.0;
  vec4 sum = X(0, 0, c4);
  for (int i = 1; i <= pos / KEYS; i++) {
    float log_sum = LOGS(0, i, c4).x, before = greatest;
    greatest = max(greatest, log_sum);
    float rescale = exp(before - greatest), weight = exp(log_sum - greatest);
    sum = sum * rescale + X(0, i, c4) * weight;
    total = total * rescale + weight;
  }
  return sum / total;
}
