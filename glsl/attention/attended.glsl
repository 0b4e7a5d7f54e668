// attended(c4) returns texel c4 of the output of attention for one row. It combines the results of `attend_row.frag`
// for the ranges of keys: their mean, weighted by the sums of exponentials, whose logarithms are in LOGS.
// If the output has several rows, a shader defines FIRST_RANGE (the row of X that holds the first range of the output
// row) and AT (the position of the output row).
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
