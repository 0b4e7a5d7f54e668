// The macros SUMS_BY and so on describe where the partial sums of a product are. SUMS_BY, SUMS_STRIDE and
// SUMS_CONTIGUOUS are the values of BY, STRIDE and CONTIGUOUS in the pass that wrote the sums. SUMS_SPLIT_K is the
// number of sums that a reader must add up for a value: that of the slices of K, or after a blended pass, which adds up
// slices, that of the bands (`Pixels` in ops/partial_sums.py; 1 with PAIRS). Most shaders that read partial sums get
// these values as BY, STRIDE, CONTIGUOUS and SPLIT_K. If a shader itself computes a product, BY and so on are those of
// this product, and the op defines SUMS_BY and so on separately.
#ifndef SUMS_BY
#define SUMS_BY BY
#define SUMS_STRIDE STRIDE
#define SUMS_CONTIGUOUS CONTIGUOUS
#define SUMS_SPLIT_K SPLIT_K
#endif
