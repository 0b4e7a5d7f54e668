// A texel holds four floats of one column tile, which need no decoding. If the device cannot render floats, FROM_FLOAT
// returns their bits.
#define f32_decode(t, tile) (t)
#define f32_encode(v) FROM_FLOAT(v)
#define f32_one(t, tile, c) (t)[c]
