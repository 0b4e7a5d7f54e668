// GPT-2 in tfjs's WebGL backend, as fast as tfjs's public operations allow: a product adds its bias in the same kernel;
// one kernel applies a norm to a matrix whose mean and variance are known; the query weights contain the attention
// scale; nothing is read back between the first and the last token.

import "@tensorflow/tfjs-backend-webgl";
import * as tf from "@tensorflow/tfjs-core";

export interface Config {
  n_layer: number;
  n_head: number;
  n_embd: number;
  n_positions: number;
  layer_norm_epsilon: number;
}

/** Keys and values of one layer, `[heads, T, d_head]`. */
type Rows = [tf.Tensor3D, tf.Tensor3D];

type State = { id: tf.Tensor1D; rows: Rows[]; length: number };

export async function startTfjs(): Promise<void> {
  await tf.setBackend("webgl");
  await tf.ready();
}

export function gl(): WebGL2RenderingContext {
  return (tf.backend() as unknown as { getGPGPUContext: () => { gl: WebGL2RenderingContext } }).getGPGPUContext().gl;
}

export class TfGpt2 {
  private readonly weights = new Map<string, tf.Tensor>();
  private readonly masks = new Map<number, tf.Tensor2D>();

  constructor(private readonly config: Config) {}

  /** Adds a weight by its name in the checkpoint. tfjs uploads the weight when an operation first uses it. */
  add(name: string, shape: number[], values: Float32Array): void {
    if (/c_attn\.(weight|bias)$/.test(name)) {
      const width = this.config.n_embd;
      const scale = Math.sqrt(this.config.n_head / width); // 1 / sqrt(d_head), for the queries
      for (let i = 0; i < values.length; i++) if (i % (3 * width) < width) values[i]! *= scale;
    }
    // The head has a separate copy of the embedding. If both shared a tensor, `matMul` would read it packed (2x2 values
    // per texel) and `gather` unpacked, so that tfjs would convert the tensor for each token.
    if (name === "wte.weight") this.weights.set("head", tf.tensor(values, shape));
    const row = name.includes("ln_"); // batchNorm requires mean and bias of equal ranks
    this.weights.set(name, tf.tensor(values, row ? [1, ...shape] : shape));
  }

  private mask(rows: number): tf.Tensor2D {
    const found = this.masks.get(rows);
    if (found) return found;
    const values = Float32Array.from({ length: rows * rows }, (_, i) => (i % rows > Math.floor(i / rows) ? -1e9 : 0));
    const made = tf.keep(tf.tensor2d(values, [rows, rows]));
    this.masks.set(rows, made);
    return made;
  }

  private matrix(name: string): tf.Tensor2D {
    const found = this.weights.get(name);
    if (!found) throw new Error(`no weight ${name}`);
    return found as tf.Tensor2D;
  }

  private vector(name: string): tf.Tensor1D {
    return this.matrix(name) as tf.Tensor as tf.Tensor1D;
  }

  private norm(x: tf.Tensor2D, name: string): tf.Tensor2D {
    const { mean, variance } = tf.moments(x, 1, true);
    const [gain, bias] = ["weight", "bias"].map((end) => this.matrix(`${name}.${end}`)) as [tf.Tensor2D, tf.Tensor2D];
    return tf.batchNorm2d(x, mean as tf.Tensor2D, variance as tf.Tensor2D, bias, gain, this.config.layer_norm_epsilon);
  }

  private linear(x: tf.Tensor2D, name: string): tf.Tensor2D {
    const [weight, bias] = [this.matrix(`${name}.weight`), this.vector(`${name}.bias`)];
    return tf.fused.matMul({ a: x, b: weight, bias }) as tf.Tensor2D;
  }

  private attention(x: tf.Tensor2D, layer: number, past: Rows | undefined): [tf.Tensor2D, Rows] {
    const { n_head, n_embd } = this.config;
    const [rows, width] = [x.shape[0], n_embd / n_head];
    const parts = tf.split(this.linear(x, `h.${layer}.attn.c_attn`), 3, 1).map((part) =>
      rows === 1
        ? tf.reshape<tf.Rank.R3>(part, [n_head, 1, width])
        : tf.transpose<tf.Tensor3D>(tf.reshape(part, [rows, n_head, width]), [1, 0, 2]),
    );
    const q = parts[0]!;
    const [k, v] = [1, 2].map((i) => (past ? tf.concat3d([past[i - 1]!, parts[i]!], 1) : parts[i]!)) as Rows;
    let scores = tf.matMul(q, k, false, true);
    if (rows > 1) scores = tf.add(scores, this.mask(rows));
    const z = tf.matMul(tf.softmax(scores), v);
    const joined = tf.reshape<tf.Rank.R2>(rows === 1 ? z : tf.transpose(z, [1, 0, 2]), [rows, n_embd]);
    return [this.linear(joined, `h.${layer}.attn.c_proj`), [k, v]];
  }

  /** Computes the tanh approximation of GELU, as x * s(x * (c + 0.044715 * c * x^2)) with the logistic function s. */
  private gelu(x: tf.Tensor2D): tf.Tensor2D {
    const c = 2 * Math.sqrt(2 / Math.PI);
    const slope = tf.add(tf.mul(tf.square(x), c * 0.044715), c);
    return tf.mul(x, tf.sigmoid(tf.mul(x, slope)));
  }

  private forward(ids: tf.Tensor1D, past: State | null): State {
    return tf.tidy(() => {
      const start = past?.length ?? 0;
      const [wte, count] = [this.matrix("wte.weight"), ids.shape[0]];
      let x: tf.Tensor2D = tf.add(
        tf.gather(wte, ids),
        tf.slice(this.matrix("wpe.weight"), [start, 0], [count, -1]),
      );
      const rows: Rows[] = [];
      for (let i = 0; i < this.config.n_layer; i++) {
        const [out, kept] = this.attention(this.norm(x, `h.${i}.ln_1`), i, past?.rows[i]);
        rows.push(kept);
        x = tf.add(x, out);
        const inner = this.gelu(this.linear(this.norm(x, `h.${i}.ln_2`), `h.${i}.mlp.c_fc`));
        x = tf.add(x, this.linear(inner, `h.${i}.mlp.c_proj`));
      }
      const last = tf.slice(x, [count - 1, 0], [1, -1]);
      const logits = tf.matMul(this.norm(last, "ln_f"), this.matrix("head"), false, true);
      return { id: tf.argMax<tf.Tensor1D>(logits, 1), rows, length: start + count };
    });
  }

  /** Returns greedy tokens after `prompt`, and the milliseconds until the first token and from there to the last. */
  async generate(prompt: number[], tokens: number): Promise<{ ids: number[]; prefillMs: number; decodeMs: number }> {
    const begin = performance.now();
    let state = tf.tidy(() => this.forward(tf.tensor1d(prompt, "int32"), null));
    const found = [state.id];
    await state.id.data();
    const middle = performance.now();
    while (found.length < tokens) {
      const next = this.forward(state.id, state);
      tf.dispose(state.rows);
      found.push((state = next).id);
    }
    const ids = [(await state.id.data())[0]!]; // waits for all earlier work
    const end = performance.now();
    for (const id of found.slice(0, -1).reverse()) ids.unshift((await id.data())[0]!);
    tf.dispose([found, state.rows]);
    return { ids, prefillMs: middle - begin, decodeMs: end - middle };
  }
}

/** The product of x `[m, k]` and w `[k, n]`. Both factors stay on the device after the first product. */
export class TfProduct {
  private readonly x: tf.Tensor2D;
  private readonly w: tf.Tensor2D;

  constructor(x: Float32Array, w: Float32Array, m: number, k: number, n: number) {
    this.x = tf.tensor2d(x, [m, k]);
    this.w = tf.tensor2d(w, [k, n]);
  }

  /** Returns the milliseconds of `count` products. Results are kept until the end, so that no product is skipped. */
  async time(count: number): Promise<number> {
    const start = performance.now();
    const found: tf.Tensor2D[] = [];
    for (let i = 0; i < count; i++) {
      found.push(tf.matMul(this.x, this.w));
      gl().flush();
    }
    await tf.tidy(() => tf.slice(found.at(-1)!, [0, 0], [1, 1])).data();
    const elapsed = performance.now() - start;
    tf.dispose(found);
    return elapsed;
  }

  async result(): Promise<Float32Array> {
    const y = tf.matMul(this.x, this.w);
    const values = (await y.data()) as Float32Array;
    y.dispose();
    return values;
  }

  close(): void {
    tf.dispose([this.x, this.w]);
  }
}
