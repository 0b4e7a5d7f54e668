// The macros SUMS_BY and so on describe where the partial sums of a product are: they are the values of BY, STRIDE,
// CONTIGUOUS and SPLIT_K in the pass that wrote the sums. Most shaders that read partial sums get these values as BY
// and so on. If a shader itself computes a product, BY and so on are those of this product, and the recorder defines
// SUMS_BY and so on separately.
#ifndef SUMS_BY
#define SUMS_BY BY
#define SUMS_STRIDE STRIDE
#define SUMS_CONTIGUOUS CONTIGUOUS
#define SUMS_SPLIT_K SPLIT_K
#endif
