// attended(c4) returns texel c4 of the output of attention for one row. It combines the results of `attend_row.frag`
// for the ranges of keys: it returns their mean, weighted by each range's sum of exponentials. LOGS holds the
// logarithms of these sums.
#ifdef RANGE_KEYS
// The ranges are those of `ranges.glsl`. The weights of a head's ranges are computed once for all texels of the head,
// and the texels of all ranges are fetched together.
#include "ranges.glsl"
float weight_of_range[RANGES];
int weighed_head = -1;  // the head to which the weights belong

void set_weights(int head, int last) {
  float greatest = -3.0e38, total = 0.0;
  for (int i = 0; i < RANGES; i++) {
    weight_of_range[i] = LOGS(0, min(i, last), head * D4).x;
    greatest = max(greatest, weight_of_range[i]);
  }
  for (int i = 0; i < RANGES; i++) {
    weight_of_range[i] = i <= last ? exp(weight_of_range[i] - greatest) : 0.0;
    total += weight_of_range[i];
  }
  for (int i = 0; i < RANGES; i++) weight_of_range[i] /= total;
  weighed_head = head;
}

vec4 attended(int c4) {
  int last = last_range();
  if (c4 / D4 != weighed_head) set_weights(c4 / D4, last);
  vec4 sum = vec4(0.0);
  for (int i = 0; i < RANGES; i++) sum += X(0, min(i, last), c4) * weight_of_range[i];  // ranges after `last` weigh 0
  return sum;
}
#else
// The ranges have KEYS keys. If the output has several rows, the shader that includes this file defines FIRST_RANGE
// (the row of X that holds the first range of the output row) and AT (the position of the output row).
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
#endif
