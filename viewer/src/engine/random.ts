// numpy's PCG64 seeded by its SeedSequence, so that a seed draws the same tokens here and on the desktop.

const M32 = 0xffffffff;
const M128 = (1n << 128n) - 1n;
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** numpy's SeedSequence(seed).generate_state(8, uint32). */
export function seedState(seed: number): Uint32Array {
  const entropy = seed > M32 ? [seed >>> 0, Math.floor(seed / 2 ** 32)] : [seed];
  const pool = new Uint32Array(4);
  let hash = 0x43b0d7e5;
  const hashed = (value: number): number => {
    value = (value ^ hash) >>> 0;
    hash = Math.imul(hash, 0x931e8875) >>> 0;
    value = Math.imul(value, hash) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x: number, y: number): number => {
    const result = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) >>> 0;
    return (result ^ (result >>> 16)) >>> 0;
  };
  for (let i = 0; i < 4; i++) pool[i] = hashed(entropy[i] ?? 0);
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to]!, hashed(pool[from]!));
  }
  const out = new Uint32Array(8);
  let generate = 0x8b51f9dd;
  for (let i = 0; i < 8; i++) {
    let value = (pool[i % 4]! ^ generate) >>> 0;
    generate = Math.imul(generate, 0x58f38ded) >>> 0;
    value = Math.imul(value, generate) >>> 0;
    out[i] = (value ^ (value >>> 16)) >>> 0;
  }
  return out;
}

export class Random {
  private state: bigint;
  private readonly increment: bigint;

  constructor(seed: number) {
    const words = seedState(seed);
    const long = (i: number) => BigInt(words[2 * i]!) | (BigInt(words[2 * i + 1]!) << 32n);
    this.increment = ((((long(2) << 64n) | long(3)) << 1n) | 1n) & M128;
    this.state = 0n;
    this.step();
    this.state = (this.state + ((long(0) << 64n) | long(1))) & M128;
    this.step();
  }

  private step(): void {
    this.state = (this.state * MULTIPLIER + this.increment) & M128;
  }

  /** A double in [0, 1). */
  next(): number {
    this.step();
    const value = BigInt.asUintN(64, this.state >> 64n) ^ BigInt.asUintN(64, this.state);
    const rotation = this.state >> 122n;
    const rotated = BigInt.asUintN(64, (value >> rotation) | (value << (-rotation & 63n)));
    return Number(rotated >> 11n) / 2 ** 53;
  }
}
