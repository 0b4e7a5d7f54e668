// attended(c4) combines the ranges of keys that `attend_row.frag` computed. It returns the mean of texel c4 of all
// ranges, each weighted by its sum of exponentials.
// With several rows, FIRST_RANGE is the row of X that holds this row's first range, and AT is this row's position.
#ifndef FIRST_RANGE
#define FIRST_RANGE 0
#define AT pos
#endif
vec4 attended(int c4) {
  int first = FIRST_RANGE;
  float greatest = LOGS(0, first, c4).x, total = 1.0;
  vec4 sum = X(0, first, c4);
  for (int i = 1; i <= AT / KEYS; i++) {
    float log_sum = LOGS(0, first + i, c4).x, before = greatest;
    greatest = max(greatest, log_sum);
    float rescale = exp(before - greatest), weight = exp(log_sum - greatest);
    sum = sum * rescale + X(0, first + i, c4) * weight;
    total = total * rescale + weight;
  }
  return sum / total;
}
