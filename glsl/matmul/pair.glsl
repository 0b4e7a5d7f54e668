// In a blended pass (`Recorder.add_up`) with PAIRS, two pixels of a quad, one above the other, compute the same values
// (texels of the product) for different slices of K. They add up their values before blending: the lower pixel then has
// the totals of the values with even numbers, and the upper pixel those with odd numbers. So one texel is blended for
// two slices.

// Returns, in the lower pixel, the total of v0 over both pixels; in the upper pixel, that of v1. dFdy(v) is v of the
// upper pixel minus v of the lower pixel.
vec4 over_pair(vec4 v0, vec4 v1) {
  vec4 lower = 2.0 * v0 + dFdy(v0), upper = 2.0 * v1 - dFdy(v1);
  return (int(gl_FragCoord.y) & 1) == 0 ? lower : upper;
}
