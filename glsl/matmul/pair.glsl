// In a blended pass with PAIRS, two pixels, one above the other in the same quad, share their columns, and each has a slice of
// K. They then add their sums up, so that a target blends a texel for two slices: each pixel keeps every second value.

// Returns the pair's sum of one of two values: of the first in the lower pixel. The derivative is upper - lower.
vec4 over_pair(vec4 v0, vec4 v1) {
  vec4 lower = 2.0 * v0 + dFdy(v0), upper = 2.0 * v1 - dFdy(v1);
  return (int(gl_FragCoord.y) & 1) == 0 ? lower : upper;
}
