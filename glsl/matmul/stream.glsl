// A row of the residual stream in blocks of 4 x X_BY columns, as one-row products write it (`matvec.frag`); each layer
// holds X_STRIDE columns.
vec4 stream_at(int c4) {
  int column = c4 % X_STRIDE;
  return X(c4 / X_STRIDE, column / 4 % X_BY, column / (4 * X_BY) * 4 + column % 4);
}
