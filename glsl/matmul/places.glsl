// Defines the SUMS_ macros, which describe the places of partial sums, by the macros of the product that wrote the
// sums, unless they are defined: a shader that uses BY, STRIDE, CONTIGUOUS and SPLIT_K for its own product defines them
// first.
#ifndef SUMS_BY
#define SUMS_BY BY
#define SUMS_STRIDE STRIDE
#define SUMS_CONTIGUOUS CONTIGUOUS
#define SUMS_SPLIT_K SPLIT_K
#endif
