// In a blended pass (`Recorder.add_up`) with PAIRS, two pixels of a quad (2 x 2 pixels), one above the other, compute
// the same texels of the product for different slices of K. They add up their results before blending: the lower pixel
// gets the sums for the first, third .. of these texels, and the upper pixel gets the others. So the device blends half
// as many texels.

// Returns v0 of the lower pixel + v0 of the upper pixel in the lower pixel, and the same sum of v1 in the upper pixel.
// dFdy(v) is v of the upper pixel minus v of the lower pixel.
vec4 over_pair(vec4 v0, vec4 v1) {
  vec4 lower = 2.0 * v0 + dFdy(v0), upper = 2.0 * v1 - dFdy(v1);
  return (int(gl_FragCoord.y) & 1) == 0 ? lower : upper;
}
