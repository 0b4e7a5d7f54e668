// The messages of split servers (glgpt/wire) and federations (glgpt/federation/protocol.py). Written by scripts/generate_schema.py.

export const PROTOCOL = 1;
export const AGAIN = ["evicted", "draining", "order", "full"] as const;
export const MAX_GUESSES = 7;
export const MAX_FROM_SERVER = 32;
export const MAX_REPLAYS = 20;
export const ANSWER_TIMEOUT_MS = 120000;
export const WIRES = ["f32", "f16", "int8"] as const;
export const MAX_NAME = 40;
export const MAX_DEVICE = 200;
export const FRAME = 1048576;
export const BLOCK = 1024;
export const DTYPES = ["f16", "f32", "int8", "exact"] as const;
export const FATAL = [4403, 4410, 4429] as const;
