// dv[s, head] = SCALE * sum over t >= s of pattern[t, head, s] dz[t, head], for every sequence of the batch.
// The row tiles are far-apart s of one sequence, so they share each fetched texel of dz.
void main() {
  ivec2 p = ivec2(gl_FragCoord.xy);
  int b = p.y % BATCH, head = p.x / D4;
  vec4 acc[Y_N];
#define START(n, i, j) acc[n] = vec4(0.0);
  Y_TILES(START)
#define S_OF(i) (i * (Y_H / BATCH) + p.y / BATCH)
  for (int t = p.y / BATCH; t < Y_ROWS / BATCH; t++) {
    vec4 d = DZ(0, t * BATCH + b, p.x);
    int row = (t * BATCH + b) * N_HEAD + head, layer = row / X_H;
    row -= layer * X_H;
#define ADD(n, i, j) acc[n] += X(layer, row, S_OF(i) / 4)[S_OF(i) % 4] * d;
    Y_TILES(ADD)
  }
#define SCALED(n, i, j) acc[n] *= SCALE;
  Y_TILES(SCALED)
  STORE_Y(acc)
}
