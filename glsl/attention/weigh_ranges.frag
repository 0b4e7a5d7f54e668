// Computes the output of attention for several rows, each at its own position: combines the RANGES ranges of keys of
// each row (`attended.glsl`).
#define FIRST_RANGE (int(gl_FragCoord.y) * RANGES)
#define AT int(PLACES(0, int(gl_FragCoord.y), 0).x)
#include "attended.glsl"

void main() {
  vec4 v[1];
  v[0] = attended(int(gl_FragCoord.x));
  STORE_Y(v)
}
