// Merges the blocks of `candidates.frag` into BLOCKS larger blocks, and finds the 7 likeliest candidates of each larger
// block. Four targets hold these candidates as pairs (logit, id), as in `candidates.frag`: 0.5 is added to the seventh
// id if the block has more tokens. Component z of the last target is the block's sum of exp(logit - greatest).
#define N_BEST 7

void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  float best[N_BEST], id[N_BEST];
  float sum = 0.0;
  bool more = false;
  for (int i = 0; i < N_BEST; i++) {
    best[i] = -3.0e38;
    id[i] = -1.0;
  }
  for (int block = p.y * Y_W + p.x; block < X_H * X_W; block += BLOCKS) {
    int y = block / X_W, k = block % X_W;
    sum += X(2, y, k).x;
    for (int layer = 0; layer < 2; layer++) {
      vec4 t = X(layer, y, k);
      for (int half_ = 0; half_ < 2; half_++) {
        float value = half_ == 0 ? t.x : t.z, its = half_ == 0 ? t.y : t.w;
        if (its < 0.0) continue;
        bool moved = false;
        for (int i = 0; i < N_BEST; i++) {
          float old_value = best[i], old_id = id[i];
          moved = moved || old_id < 0.0 || value > old_value || (value == old_value && its < old_id);
          best[i] = moved ? value : old_value;
          id[i] = moved ? its : old_id;
          value = moved ? old_value : value;
          its = moved ? old_id : its;
        }
        more = more || its >= 0.0;
      }
    }
  }
  if (more) id[N_BEST - 1] = floor(id[N_BEST - 1]) + 0.5;
  vec4 v[4];
  for (int t = 0; t < 3; t++) v[t] = vec4(best[2 * t], id[2 * t], best[2 * t + 1], id[2 * t + 1]);
  v[3] = vec4(best[N_BEST - 1], id[N_BEST - 1], sum, 0.0);
  STORE_Y(v)
}
