// The training step in tfjs's WebGL backend, with a hand-written backward pass. It is as fast as tfjs's public
// operations allow: one product computes queries, keys and values; sums are computed as products with matrices of ones;
// only operations with packed kernels (2x2 values per texel) are used; constants stay on the device; parameters of one
// kind are updated together; nothing is read back before the last step is done.

import "@tensorflow/tfjs-backend-webgl";
import * as tf from "@tensorflow/tfjs-core";
import { batch, type Course, type Learner, type Shape, type Weights } from "./learner";

type M = tf.Tensor2D;
type Heads = tf.Tensor3D;
type Back = (dy: M) => M;

/** Parameters of one kind, joined (matrices stacked, vectors side by side), so that AdamW takes few passes. */
interface Group {
  names: string[];
  sizes: number[];
  axis: 0 | 1;
  decay: number;
  state: [M, M, M]; // values; both moments without the factor (1 - beta), which `update` applies
}

export class TfLearner implements Learner {
  readonly engine = "tfjs";
  private readonly groups: Group[] = [];
  private readonly constants = new Map<string, tf.Tensor>();
  private readonly w = new Map<string, M>();
  private readonly d = new Map<string, M>();
  private readonly average: M;
  private readonly mask: M;
  private readonly places: M;
  private step = 0;

  constructor(
    private readonly shape: Shape,
    private readonly course: Course,
    weights: Weights,
  ) {
    const { config, recipe } = shape;
    const kinds = new Map<string, string[]>();
    for (const [name, { shape: size }] of weights) {
      const kind = size.length > 1 ? name.replace(/^h\.\d+\./, "") : "vectors";
      kinds.set(kind, [...(kinds.get(kind) ?? []), name]);
    }
    for (const [kind, names] of kinds) {
      const axis = kind === "vectors" ? 1 : 0;
      const all = names.map((name) => weights.get(name)!);
      const matrices = all.map(({ shape: s, data }) => tf.tensor2d(data, axis ? [1, s[0]!] : (s as [number, number])));
      const values = tf.concat(matrices, axis);
      tf.dispose(matrices);
      const decay = axis ? 0 : recipe.weight_decay;
      const state: Group["state"] = [values, tf.zerosLike(values), tf.zerosLike(values)];
      this.groups.push({ names, sizes: all.map((a) => a.shape[0]!), axis, decay, state });
    }
    const { batch: size, context: t } = recipe;
    const grid = (name: string, rows: number, value: (row: number, col: number) => number) => {
      const values = Float32Array.from({ length: rows * t }, (_, i) => value(Math.floor(i / t), i % t));
      return this.kept(name, () => tf.tensor2d(values, [rows, t]));
    };
    this.mask = grid("mask", t, (row, col) => (col > row ? -1e9 : 0));
    this.places = grid("places", size * t, (row, col) => Number(row % t === col));
    this.average = this.kept("average", () => tf.fill<tf.Rank.R2>([config.n_embd, 1], 1 / config.n_embd));
  }

  async take(steps: number): Promise<number[]> {
    const losses: tf.Scalar[] = [];
    for (let i = 0; i < steps; i++) losses.push(tf.tidy(() => this.one()));
    await tf.tidy(() => tf.slice(this.groups.at(-1)!.state[0], [0, 0], [1, 1])).data(); // waits for the last update
    const values = await Promise.all(losses.map(async (loss) => (await loss.data())[0]!));
    tf.dispose(losses);
    return values;
  }

  bytes(): number {
    // Includes unused textures that tfjs keeps for reuse.
    return (tf.memory() as unknown as { numBytesInGPU: number }).numBytesInGPU;
  }

  close(): void {
    tf.dispose([[...this.constants.values()], this.groups.map(({ state }) => state)]);
  }

  private one(): tf.Scalar {
    for (const { names, sizes, axis, state } of this.groups) {
      let at = 0;
      for (const [i, name] of names.entries()) {
        const [begin, size] = axis ? [[0, at], [1, sizes[i]!]] : [[at, 0], [sizes[i]!, -1]];
        this.w.set(name, tf.slice(state[0], begin, size));
        at += sizes[i]!;
      }
    }
    const loss = this.backward();
    this.update();
    return loss;
  }

  // -- forward and backward ---------------------------------------------------------------------------------------

  /** Computes the loss, and stores the gradients in `d`. */
  private backward(): tf.Scalar {
    const { config, recipe } = this.shape;
    const { inputs, targets } = batch(this.course, this.shape, ++this.step);
    const rows = inputs.length;
    const hot = (ids: Int32Array) => tf.oneHot(tf.tensor1d(ids, "int32"), config.vocab_size, 1, 0, "float32") as M;
    const wte = this.weight("wte.weight");
    const tokens = tf.reshape(tf.gather(wte, tf.tensor1d(inputs, "int32")), [recipe.batch, recipe.context, -1]);
    let x: M = tf.reshape<tf.Rank.R2>(tf.add(tokens, this.weight("wpe.weight")), [rows, -1]);
    const backs: Back[] = [];
    for (let i = 0; i < config.n_layer; i++) {
      for (const half of ["attention", "mlp"] as const) {
        const [y, back] = this[half](x, `h.${i}.`);
        x = tf.add(x, y);
        backs.push(back);
      }
    }
    const [normed, normBack] = this.norm(x, "ln_f");
    const [loss, dLogits] = this.crossEntropy(tf.matMul(normed, wte, false, true), hot(targets));
    let dx = normBack(tf.matMul(dLogits, wte));
    for (const back of backs.reverse()) dx = tf.add(dx, tf.tidy(() => back(dx)));
    this.d.set("wte.weight", tf.add(tf.matMul(dLogits, normed, true), tf.matMul(hot(inputs), dx, true)));
    this.d.set("wpe.weight", tf.matMul(this.places, dx, true));
    return loss;
  }

  /** Returns a constant, made once and kept on the device. A new one for each operation would be uploaded each time. */
  private kept<T extends tf.Tensor>(name: string, make: () => T): T {
    const found = this.constants.get(name) ?? tf.keep(make());
    this.constants.set(name, found);
    return found as T;
  }

  private number(value: number): tf.Scalar {
    return this.kept(String(value), () => tf.scalar(value));
  }

  private ones(rows: number, cols: number): M {
    return this.kept(`${rows} x ${cols}`, () => tf.ones<tf.Rank.R2>([rows, cols]));
  }

  private weight(name: string): M {
    return this.w.get(name)!;
  }

  /** Stores a gradient, and protects it from `tf.tidy`, which disposes the other tensors of a layer's backward pass. */
  private note(name: string, gradient: M): void {
    this.d.set(name, tf.keep(gradient));
  }

  private columnSums(x: M): M {
    return tf.matMul(this.ones(1, x.shape[0]), x);
  }

  private crossEntropy(logits: M, hot: M): [tf.Scalar, M] {
    const [rows, vocab] = logits.shape;
    const one = this.ones(vocab, 1);
    const below: M = tf.sub(logits, tf.max(logits, 1, true));
    const e = tf.exp(below);
    const sum: M = tf.matMul(e, one);
    const losses = tf.sub(tf.log(sum), tf.matMul(tf.mul(below, hot), one));
    return [tf.mean<tf.Scalar>(losses), tf.mul<M>(tf.sub(tf.div(e, sum), hot), this.number(1 / rows))];
  }

  private linear(x: M, name: string): [M, Back] {
    const w = this.weight(`${name}.weight`);
    const back: Back = (dy) => {
      this.note(`${name}.weight`, tf.matMul(x, dy, true));
      this.note(`${name}.bias`, this.columnSums(dy));
      return tf.matMul(dy, w, false, true);
    };
    return [tf.fused.matMul({ a: x, b: w, bias: this.weight(`${name}.bias`) }) as M, back];
  }

  private norm(x: M, name: string): [M, Back] {
    const eps = this.shape.config.layer_norm_epsilon;
    const [gain, bias] = [this.weight(`${name}.weight`), this.weight(`${name}.bias`)];
    const mean: M = tf.matMul(x, this.average);
    const variance: M = tf.matMul(tf.squaredDifference<M>(x, mean), this.average);
    const back: Back = (dy) => {
      const unit = tf.batchNorm2d(x, mean, variance, undefined, undefined, eps);
      const product: M = tf.mul(dy, unit);
      this.note(`${name}.weight`, this.columnSums(product));
      this.note(`${name}.bias`, this.columnSums(dy));
      const weighed: M = tf.mul(this.average, tf.reshape(gain, [-1, 1]));
      const inverse = tf.div(this.number(-1), tf.sqrt(tf.add(variance, this.number(eps))));
      const offset: M = tf.mul(unit, tf.mul<M>(tf.matMul(product, weighed), inverse));
      return tf.batchNorm2d(tf.mul(dy, gain), tf.matMul(dy, weighed), variance, offset, undefined, eps);
    };
    return [tf.batchNorm2d(x, mean, variance, bias, gain, eps), back];
  }

  private mlp(x: M, h: string): [M, Back] {
    const [normed, normBack] = this.norm(x, `${h}ln_2`);
    const [inner, innerBack] = this.linear(normed, `${h}mlp.c_fc`);
    const [act, actBack] = this.gelu(inner);
    const [y, yBack] = this.linear(act, `${h}mlp.c_proj`);
    return [y, (dy) => normBack(innerBack(actBack(yBack(dy))))];
  }

  /** Computes the tanh form of GELU with the logistic function s, as x * s(x * (c + a * c * x^2)). */
  private gelu(x: M): [M, Back] {
    const [c, a] = [2 * Math.sqrt(2 / Math.PI), 0.044715];
    const square: M = tf.mul(x, x);
    const s = tf.tidy(() => tf.sigmoid(tf.mul<M>(x, tf.add(tf.mul(square, this.number(c * a)), this.number(c)))));
    const y: M = tf.mul(x, s);
    const back: Back = (dy) => {
      const slope = tf.add(tf.mul(square, this.number(3 * c * a)), this.number(c));
      return tf.mul(dy, tf.add(s, tf.mul(tf.sub(y, tf.mul(y, s)), slope)));
    };
    return [y, back];
  }

  private attention(x: M, h: string): [M, Back] {
    const { n_head: heads, n_embd } = this.shape.config;
    const { batch: size, context: t } = this.shape.recipe;
    const [rows, wide] = [size * t, n_embd / heads];
    const scale = this.number(1 / Math.sqrt(wide));
    const three = (x: tf.Tensor, ...shape: [number, number, number]): Heads => tf.reshape(x, shape);
    const joined = (x: Heads): M => tf.tidy(() => tf.reshape(tf.transpose(x, [1, 0, 2]), [rows, -1]));
    const [normed, normBack] = this.norm(x, `${h}ln_1`);
    const [qkv, qkvBack] = this.linear(normed, `${h}attn.c_attn`);
    const [q, k, v] = tf.tidy(() => {
      const parts = tf.split(tf.transpose(three(qkv, rows, 3 * heads, wide), [1, 0, 2]), 3);
      const [q, k, v] = parts.map((part) => three(part, heads * size, t, wide)) as [Heads, Heads, Heads];
      return [tf.mul<Heads>(q, scale), k, v] as const;
    });
    const pattern = tf.tidy(() => {
      const scores = tf.add(tf.matMul(q, k, false, true), this.mask);
      const e: Heads = tf.exp(tf.sub(scores, tf.max(scores, 2, true)));
      return tf.div<Heads>(e, tf.matMul(e, three(this.ones(t, 1), 1, t, 1)));
    });
    const z = tf.matMul(pattern, v);
    const [y, yBack] = this.linear(joined(three(z, heads, rows, wide)), `${h}attn.c_proj`);
    const back: Back = (dy) => {
      const dz = three(tf.transpose(three(yBack(dy), rows, heads, wide), [1, 0, 2]), heads * size, t, wide);
      const inner = tf.matMul(tf.mul<Heads>(dz, z), three(this.ones(wide, 1), 1, wide, 1));
      const dScores: Heads = tf.mul(pattern, tf.sub(tf.matMul(dz, v, false, true), inner));
      const dq: Heads = tf.mul(tf.matMul(dScores, k), scale);
      const parts = tf.concat([dq, tf.matMul(dScores, q, true), tf.matMul(pattern, dz, true)], 0);
      return normBack(qkvBack(joined(three(parts, 3 * heads, rows, wide))));
    };
    return [y, back];
  }

  // -- AdamW --------------------------------------------------------------------------------------------------------

  /** Applies AdamW (Loshchilov and Hutter 2019) to gradients clipped by their global norm. */
  private update(): void {
    const { betas, eps, clip } = this.shape.recipe;
    const [b1, b2] = betas;
    const gradients = this.groups.map(({ names, axis }) => tf.concat(names.map((name) => this.d.get(name)!), axis));
    tf.dispose([...this.d.values()]);
    const squares = gradients.map((g) => tf.matMul(this.columnSums(tf.mul(g, g)), this.ones(g.shape[1], 1)));
    const scale = tf.minimum(this.number(1), tf.div(this.number(clip), tf.sqrt(tf.addN(squares))));
    const unbias1 = (1 - b1) / (1 - b1 ** this.step);
    const root = Math.sqrt((1 - b2) / (1 - b2 ** this.step));
    const [epsilon, rate] = [tf.scalar(eps / root), tf.scalar((this.course.lr * unbias1) / root)];
    for (const [i, group] of this.groups.entries()) {
      const g: M = tf.mul(gradients[i]!, scale);
      const [values, first, second] = group.state;
      const m: M = tf.add(tf.mul(first, this.number(b1)), g);
      const s: M = tf.add(tf.mul(second, this.number(b2)), tf.mul(g, g));
      const change = tf.mul(tf.div(m, tf.add(tf.sqrt(s), epsilon)), rate);
      const kept = group.decay ? tf.mul(values, this.number(1 - this.course.lr * group.decay)) : values;
      group.state = [tf.keep(tf.sub(kept, change)), tf.keep(m), tf.keep(s)];
      tf.dispose([values, first, second]);
    }
  }
}
