// The sum of a split product's partial sums for one texel of columns, PART_AT(s, c4) for s < PARTS. Four at a time:
// a fetch takes long and a loop of single ones waits for each.
vec4 sum_parts(int c4) {
  vec4 sum = vec4(0.0);
  int s = 0;
  for (; s + 4 <= PARTS; s += 4) {
    sum += (PART_AT(s, c4) + PART_AT(s + 1, c4)) + (PART_AT(s + 2, c4) + PART_AT(s + 3, c4));
  }
  for (; s < PARTS; s++) sum += PART_AT(s, c4);
  return sum;
}
