// What the tokens of a texel weigh that the threshold leaves.
vec4 kept_weights(int c4) {
  vec4 x = x_at(0, c4), threshold = THRESHOLD(0, 0, 0);
  ivec4 id = 4 * c4 + ivec4(0, 1, 2, 3);
  bvec4 above = greaterThan(x, vec4(threshold.x)), level = equal(x, vec4(threshold.x));
  bvec4 early = lessThanEqual(vec4(id), vec4(threshold.y)), there = lessThan(id, ivec4(X_COLS));
  vec4 kept = max(vec4(above), vec4(level) * vec4(early)) * vec4(there);
  return mix(vec4(0.0), exp((x - threshold.z) * inverse_temperature), notEqual(kept, vec4(0.0)));
}
