// Macros that describe where the partial sums of a product are. SUMS_BY, SUMS_STRIDE and SUMS_CONTIGUOUS are the values
// of BY, STRIDE and CONTIGUOUS in the pass that wrote the sums (`matvec.frag`). SUMS_SPLIT_K is how many sums a reader
// must add up for each value. This is the number of slices of K. But if a blended pass has already added up the slices,
// it is the number of bands (`Pixels` in ops/partial_sums.py), or 1 with PAIRS.
// Most shaders that read partial sums get these values as BY, STRIDE, CONTIGUOUS and SPLIT_K. In a shader that itself
// computes a product, these four names describe the new product, and the op defines the four SUMS_ macros separately.
#ifndef SUMS_BY
#define SUMS_BY BY
#define SUMS_STRIDE STRIDE
#define SUMS_CONTIGUOUS CONTIGUOUS
#define SUMS_SPLIT_K SPLIT_K
#endif
