// Limits of attention: `beyond` is true for keys to which the query at `position` does not attend (later keys, and with
// WINDOW also distant earlier ones), and `capped` applies the soft cap to scores.
bvec4 beyond(ivec4 keys, int position) {
#ifdef WINDOW
  return bvec4(uvec4(greaterThan(keys, ivec4(position))) | uvec4(lessThanEqual(keys, ivec4(position - WINDOW))));
#else
  return greaterThan(keys, ivec4(position));
#endif
}

#ifdef CAP
// Returns CAP * tanh(x / CAP), in a form that cannot overflow.
vec4 capped(vec4 x) { return CAP * (1.0 - 2.0 / (1.0 + exp(min(x * (2.0 / CAP), 80.0)))); }
#else
vec4 capped(vec4 x) { return x; }
#endif
