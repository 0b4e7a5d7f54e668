// A row of the residual stream in blocks of 4 x X_BY columns, as one-row products write it (`matvec.frag`); each layer
// holds X_STRIDE columns. The row is the sum of X_BANDS such rows, one below the other; with PAIRS (`pair.glsl`), it is two
// rows of a layer, each with X_STRIDE columns.
vec4 stream_at(int c4) {
  int column = c4 % X_STRIDE, layer = c4 / X_STRIDE, x = column / (4 * X_BY) * 4 + column % 4, y = column / 4 % X_BY;
#ifdef PAIRS
  return X(layer / 2, layer % 2, column);
#else
  vec4 v = X(layer, y, x);
  for (int i = 1; i < X_BANDS; i++) v += X(layer, i * X_BY + y, x);
  return v;
#endif
}
