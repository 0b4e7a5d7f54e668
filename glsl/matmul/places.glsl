// Says where partial sums are, with the macros of the product that wrote them, unless the shader has its own under these names.
#ifndef SUMS_BY
#define SUMS_BY BY
#define SUMS_STRIDE STRIDE
#define SUMS_CONTIGUOUS CONTIGUOUS
#define SUMS_SPLIT_K SPLIT_K
#endif
