// Ranks the candidates: for candidate i of block b, the texel in column b and row i = (logit, id, number of likelier
// candidates, total weight of the likelier candidates). Of two candidates with equal logits, that with the smaller id
// counts as likelier.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  vec4 pair = X(p.y / 2, p.x / X_W, p.x % X_W);
  vec2 own = p.y % 2 == 0 ? pair.xy : pair.zw, before = vec2(0.0);
  float greatest = BEST(0, 0, 0).y;
  for (int layer = 0; layer < X_TC; layer++) {
    for (int y = 0; y < X_H; y++) {
      for (int k = 0; k < X_W; k++) {
        vec4 t = X(layer, y, k);
        if (layer == X_TC - 1) t.w = -1.0;  // z and w of the last layer are not a candidate: z is the block's sum
        bvec2 first = lessThan(t.yw, vec2(own.y)), there = greaterThanEqual(t.yw, vec2(0.0));
        if (there.x && (t.x > own.x || (t.x == own.x && first.x))) before += vec2(1.0, exp((t.x - greatest) * inverse_temperature));
        if (there.y && (t.z > own.x || (t.z == own.x && first.y))) before += vec2(1.0, exp((t.z - greatest) * inverse_temperature));
      }
    }
  }
  vec4 v[1];
  v[0] = vec4(own, before);
  STORE_Y(v)
}
