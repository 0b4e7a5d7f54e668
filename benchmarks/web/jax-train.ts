// The training step in jax-js's WebGL backend: one jitted function, which returns the loss and the new state. jax-js
// counts references to arrays: `.ref` adds a reference, and an operation consumes one reference to each operand.

import { defaultDevice, init, jit, nn, numpy as np, tree, valueAndGrad } from "@jax-js/jax";
import { batch, type Course, type Learner, type Shape, type Weights } from "./learner";

type Params = Record<string, np.Array>;
type State = [values: Params, first: Params, second: Params];

export class JaxLearner implements Learner {
  readonly engine = "jax-js";
  private readonly advance: (
    state: State,
    inputs: np.Array,
    targets: np.Array,
    scalars: np.Array[],
  ) => [np.Array, State];
  private state: State;
  private step = 0;

  private constructor(
    private readonly shape: Shape,
    private readonly course: Course,
    weights: Weights,
  ) {
    const made = (of: (data: Float32Array<ArrayBuffer>) => Float32Array<ArrayBuffer>): Params =>
      Object.fromEntries([...weights].map(([name, w]) => [name, np.array(of(w.data), { shape: w.shape })]));
    const zeros = (data: Float32Array) => new Float32Array(data.length);
    this.state = [made((data) => data), made(zeros), made(zeros)];
    const gradient = valueAndGrad((values: Params, inputs: np.Array, targets: np.Array) =>
      this.loss(values, inputs, targets),
    );
    this.advance = jit((state: State, inputs: np.Array, targets: np.Array, scalars: np.Array[]): [np.Array, State] => {
      const [loss, gradients] = gradient(tree.ref(state[0]), inputs, targets);
      return [loss, this.update(state, gradients, scalars)];
    });
  }

  static async open(shape: Shape, course: Course, weights: Weights): Promise<JaxLearner> {
    if (!(await init("webgl")).includes("webgl")) throw new Error("jax-js found no WebGL");
    defaultDevice("webgl");
    return new JaxLearner(shape, course, weights);
  }

  async take(steps: number): Promise<number[]> {
    const [b1, b2] = this.shape.recipe.betas;
    const losses: np.Array[] = [];
    for (let i = 0; i < steps; i++) {
      const { inputs, targets } = batch(this.course, this.shape, ++this.step);
      const scalars = [1 / (1 - b1 ** this.step), 1 / (1 - b2 ** this.step)].map((value) => np.array(value));
      const [loss, state] = this.advance(this.state, np.array(inputs), np.array(targets), scalars);
      this.state = state;
      losses.push(loss);
    }
    await Promise.all(Object.values(this.state[0]).map((value) => value.blockUntilReady()));
    return Promise.all(losses.map(async (loss) => (await loss.jsAsync()) as number));
  }

  bytes(): null {
    return null;
  }

  close(): void {
    tree.dispose(this.state);
  }

  private loss(w: Params, inputs: np.Array, targets: np.Array): np.Array {
    const { vocab_size, n_layer, n_head, n_embd, layer_norm_epsilon } = this.shape.config;
    const { batch: size, context } = this.shape.recipe;
    const get = (name: string) => w[name]!.ref;
    const norm = (x: np.Array, name: string) =>
      nn.standardize(x, -1, { epsilon: layer_norm_epsilon }).mul(get(`${name}.weight`)).add(get(`${name}.bias`));
    const linear = (x: np.Array, name: string) => np.matmul(x, get(`${name}.weight`)).add(get(`${name}.bias`));
    const tokens = np.matmul(nn.oneHot(inputs, vocab_size), get("wte.weight")).reshape([size, context, n_embd]);
    let x = tokens.add(get("wpe.weight")).reshape([size * context, n_embd]);
    for (let i = 0; i < n_layer; i++) {
      const h = `h.${i}.`;
      const qkv = linear(norm(x.ref, `${h}ln_1`), `${h}attn.c_attn`);
      const [q, k, v] = np.split(qkv, 3, 1).map((part) => part.reshape([size, context, n_head, n_embd / n_head]));
      const z = nn.dotProductAttention(q!, k!, v!, { isCausal: true }).reshape([size * context, n_embd]);
      x = x.add(linear(z, `${h}attn.c_proj`));
      const inner = nn.gelu(linear(norm(x.ref, `${h}ln_2`), `${h}mlp.c_fc`), { approximate: true });
      x = x.add(linear(inner, `${h}mlp.c_proj`));
    }
    const logits = np.matmul(norm(x, "ln_f"), get("wte.weight").transpose());
    tree.dispose(w);
    return nn.logSoftmax(logits).mul(nn.oneHot(targets, vocab_size)).sum(1).sum().mul(-1 / (size * context));
  }

  /** Applies AdamW (Loshchilov and Hutter 2019) to gradients clipped by their global norm. */
  private update([values, first, second]: State, gradients: Params, [unbias1, unbias2]: np.Array[]): State {
    const { betas, eps, clip, weight_decay } = this.shape.recipe;
    const { lr } = this.course;
    const squares = Object.values(gradients).map((g) => np.square(g.ref).sum(-1).sum());
    const scale = np.minimum(np.array(clip).div(np.sqrt(squares.reduce((a, b) => a.add(b)))), 1);
    const next: State = [{}, {}, {}];
    for (const [name, value] of Object.entries(values)) {
      const g = gradients[name]!.mul(scale.ref);
      const m = first[name]!.mul(betas[0]).add(g.ref.mul(1 - betas[0]));
      const s = second[name]!.mul(betas[1]).add(np.square(g).mul(1 - betas[1]));
      const change = m.ref.mul(unbias1!.ref).div(np.sqrt(s.ref.mul(unbias2!.ref)).add(eps)).mul(lr);
      next[0][name] = (value.ndim > 1 ? value.mul(1 - lr * weight_decay) : value).sub(change);
      next[1][name] = m;
      next[2][name] = s;
    }
    tree.dispose([scale, unbias1!, unbias2!]);
    return next;
  }
}
