// y = the row that the residual stream holds in blocks: see `stream.glsl`.
#include "stream.glsl"

void main() {
  vec4 v[1];
  v[0] = stream_at(int(gl_FragCoord.x));
  STORE_Y(v)
}
