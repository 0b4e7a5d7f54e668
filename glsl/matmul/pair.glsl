// In a blended pass (`Recorder.add_up`) with PAIRS, two pixels of a quad, one above the other, compute the same columns
// for different slices of K. They add up their sums before blending: the lower pixel keeps the values with even
// numbers, and the upper pixel those with odd numbers. One texel is then blended for two slices.

// Returns the sum of v0 over both pixels in the lower pixel, and the sum of v1 over both in the upper one. dFdy(v) is
// the upper v - the lower v.
vec4 over_pair(vec4 v0, vec4 v1) {
  vec4 lower = 2.0 * v0 + dFdy(v0), upper = 2.0 * v1 - dFdy(v1);
  return (int(gl_FragCoord.y) & 1) == 0 ? lower : upper;
}
