// Converts a residual stream, which is stored in blocks (`stream.glsl`), to a row y.
#include "stream.glsl"

void main() {
  vec4 v[1];
  v[0] = stream_at(int(gl_FragCoord.x));
  STORE_Y(v)
}
