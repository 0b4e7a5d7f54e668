// Rows of attention from their ranges of keys, RANGES of each row, which is at a position of its own.
#define FIRST_RANGE (int(gl_FragCoord.y) * RANGES)
#define AT int(PLACES(0, int(gl_FragCoord.y), 0).x)
#include "attended.glsl"

void main() {
  vec4 v[1];
  v[0] = attended(int(gl_FragCoord.x));
  STORE_Y(v)
}
