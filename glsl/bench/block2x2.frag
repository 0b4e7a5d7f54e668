// A matrix product in which each texel holds a 2 x 2 block of a matrix, as in tfjs and onnxruntime-web.
precision highp sampler2D;
uniform sampler2D u_x, u_w;
layout(location = 0) out vec4 y;

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 sum = vec4(0.0);
  for (int k = 0; k < K / 2; k++) {
    vec4 a = FETCH2D(u_x, X_STEP, k, p.y), b = FETCH2D(u_w, W_STEP, p.x, k);
    sum += a.xxzz * b.xyxy + a.yyww * b.zwzw;
  }
  y = sum;
}
