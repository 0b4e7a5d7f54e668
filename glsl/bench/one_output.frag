// A matrix product with one value per texel and one output per fragment, as in many WebGL ports of models.
precision highp sampler2D;
uniform sampler2D u_x, u_w;
layout(location = 0) out float y;

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  float sum = 0.0;
  for (int k = 0; k < K; k++) sum += FETCH2D(u_x, X_STEP, k, p.y) .x * FETCH2D(u_w, W_STEP, p.x, k).x;
  y = sum;
}
