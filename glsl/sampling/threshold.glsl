// found_threshold combines the parts that `threshold.frag` computed into the threshold of top-k, top-p and min-p:
// (logit, id, greatest logit, state). A token is kept if its logit is greater than that of the threshold, or if the
// logits are equal and the token's id is at most that of the threshold. The state is 1 if a logit is not finite. It is
// 2 if the certain candidates (`threshold.frag`) do not reach down to the threshold: then a token above the threshold
// may be missing among the candidates. Otherwise, the state is 0.
vec4 found_threshold() {
  vec4 best = THRESHOLD(0, 0, THRESHOLD_W - 1), last = vec4(-3.0e38, 3.0e38, -1.0, 3.0e38);
  bool search = NUCLEUS || top_k > 0;
  for (int k = 0; k < THRESHOLD_W - 1 && search; k++) {
    vec4 part = THRESHOLD(0, 0, k);
    if (part.z > last.z) last.xyz = part.xyz;
    last.w = min(last.w, part.w);
  }
  bool decided = !search || (last.z >= 0.0 && last.z < last.w);
  if (best.y - margin > last.x) last.xy = vec2(best.y - margin, 3.0e38);
  return vec4(last.xy, best.y, best.z > 0.0 ? 1.0 : decided ? 0.0 : 2.0);
}
