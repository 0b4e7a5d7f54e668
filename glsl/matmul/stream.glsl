// stream_at(c4) returns texel c4 of the residual stream of one row (token). Each layer of X holds X_STRIDE texels of
// the row. They are in blocks of 4 x X_BY texels, as one-row products write them (`matvec.frag`). A layer has X_BANDS
// bands of such blocks, one below the other. A texel of the row is the sum of the texels at its place in all bands.
// With PAIRS (`pair.glsl`), a layer instead holds 2 X_STRIDE texels of the row, as two rows of X_STRIDE texels.
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
