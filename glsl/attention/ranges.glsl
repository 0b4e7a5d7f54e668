// Divides the attention of one row among the fragments of a GPU. The keys to which the row attends are in at most
// RANGES ranges. All ranges have the same number of keys, a multiple of RANGE_KEYS, but the last one may have fewer.
// With WINDOW, the row attends to the last WINDOW keys; the first range begins with the first key of a texel of scores,
// so it may include up to three earlier keys, whose scores are masked.
int first_key() {
#ifdef WINDOW
  return max(pos - WINDOW + 1, 0) / 4 * 4;
#else
  return 0;
#endif
}

int keys_of_range() { return RANGE_KEYS * (1 + (pos - first_key()) / (RANGE_KEYS * RANGES)); }

// Returns the number of the last range that has keys.
int last_range() { return (pos - first_key()) / keys_of_range(); }
