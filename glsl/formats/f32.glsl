// Four floats of one column tile: nothing to decode. Where floats cannot be rendered, FROM_FLOAT gives their bits.
#define f32_decode(t, tile) (t)
#define f32_encode(v) FROM_FLOAT(v)
#define f32_one(t, tile, c) (t)[c]
