// Measures the peak rate of multiply-adds: eight of them at a time, after a single fetch.
void main() {
  vec4 x = X(0, 0, 0), a[8];
  for (int i = 0; i < 8; i++) a[i] = x + float(i);
  for (int k = 0; k < STEPS; k++) {
    a[0] = a[0] * x + a[1]; a[1] = a[1] * x + a[2]; a[2] = a[2] * x + a[3]; a[3] = a[3] * x + a[4];
    a[4] = a[4] * x + a[5]; a[5] = a[5] * x + a[6]; a[6] = a[6] * x + a[7]; a[7] = a[7] * x + a[0];
  }
  vec4 v[1];
  v[0] = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
  STORE_Y(v)
}
