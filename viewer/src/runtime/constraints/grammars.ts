// Follows constrained texts with a worker, which is loaded when the first constraint is used.

import { PageError, reason } from "../gl/errors";
import { Queue } from "../gl/wait";
import { checkedConstraint, unusable, type Constraint } from "./constraint";
import type { Answer, Job } from "./grammar-worker";
import address from "./grammar-worker?worker&url";

const LOAD_MS = 60_000; // to fetch the worker and read the vocabulary
const COMPILE_MS = 20_000;
const TOKEN_MS = 20_000;

/** Describes a model's vocabulary. */
export interface GrammarVocabulary {
  size: number;
  /** The ids that end a text. */
  ends: readonly number[];
  /** Returns a token in the letters of byte-level vocabularies; "" if a constrained text cannot have it. */
  letters: (id: number) => string;
}

/** The worker, or what tests put in its place. */
export type GrammarWorker = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/** Starts the worker. A page on another origin than this script needs a copy of it. */
async function started(): Promise<GrammarWorker> {
  try {
    return new Worker(address, { type: "module" });
  } catch (error) {
    const response = await fetch(address).catch(() => null);
    if (!response?.ok) throw error;
    const copy = URL.createObjectURL(await response.blob());
    const worker = new Worker(copy, { type: "module" });
    setTimeout(() => URL.revokeObjectURL(copy), LOAD_MS); // the worker has read it by then
    return worker;
  }
}

/** Starts constrained texts, one at a time: a matcher ends the one before it. */
export class Grammars {
  private worker: GrammarWorker | null = null;
  private closings = 0;
  private readonly jobs = new Queue(); // an answer belongs to the latest job

  constructor(
    private readonly vocabulary: GrammarVocabulary,
    private readonly start: () => Promise<GrammarWorker> = started,
  ) {}

  /** Returns a matcher at the beginning of a text. Rejects with ConstraintError for a constraint that cannot be used. */
  async matcher(constraint: Constraint): Promise<Matcher> {
    const { constraint: copy, what } = checkedConstraint(constraint);
    if (!this.worker) await this.load();
    const bits = await this.asked({ constraint: copy }, COMPILE_MS).catch((error: unknown) => {
      throw unusable(what, reason(error));
    });
    return new Matcher(this.vocabulary, bits!, (token) => this.followed(what, token));
  }

  /** Ends the worker. */
  close(): void {
    this.closings++;
    this.worker?.terminate();
    this.worker = null;
  }

  private async load(): Promise<void> {
    const { size, ends, letters } = this.vocabulary;
    const vocabulary = [...Array.from({ length: size }, (_, id) => (ends.includes(id) ? "" : letters(id))), ""];
    const { closings } = this;
    try {
      const worker = await this.start();
      if (closings !== this.closings)
        worker.terminate(); // `close` was called while it started
      else this.worker = worker;
      await this.asked({ vocabulary }, LOAD_MS);
    } catch (error) {
      this.close();
      throw new PageError(`Constraints cannot be used in this page: ${cause(error)}`);
    }
  }

  private async followed(what: string, token: number): Promise<Uint32Array> {
    try {
      return (await this.asked({ token }, TOKEN_MS))!;
    } catch (error) {
      throw new PageError(`The ${what} cannot be followed further: ${reason(error)}. Simplify it.`);
    }
  }

  /**
   * Sends a job after all earlier ones and returns the answer's bits. Rejects with Failed if there are none; a worker that
   * failed is ended.
   */
  private asked(job: Job, limit: number): Promise<Uint32Array | null> {
    return this.jobs.run(() => this.sent(job, limit));
  }

  private async sent(job: Job, limit: number): Promise<Uint32Array | null> {
    const { worker } = this;
    if (!worker) throw new Failed("its worker has ended");
    let timer: ReturnType<typeof setTimeout> | undefined;
    const answer = await new Promise<Answer>((resolve) => {
      worker.onmessage = ({ data }: MessageEvent<Answer>) => resolve(data);
      worker.onerror = (event) => {
        event.preventDefault();
        resolve({ failed: event.message || "its worker could not be loaded" });
      };
      timer = setTimeout(() => resolve({ failed: `it took more than ${limit / 1000} s` }), limit);
      worker.postMessage(job);
    });
    clearTimeout(timer);
    if ("failed" in answer) this.close();
    if ("failed" in answer || "refused" in answer)
      throw new Failed("failed" in answer ? answer.failed : answer.refused);
    return "bits" in answer ? answer.bits : null;
  }
}

/** Thrown for a job that the worker could not do. */
class Failed extends Error {}

/** Returns why the worker did not start, and what to do. */
function cause(error: unknown): string {
  const why = reason(error);
  if (/unsafe-eval|CompileError|Content Security/i.test(why)) {
    return "the Content-Security-Policy forbids WebAssembly. Add 'wasm-unsafe-eval' to its script-src.";
  }
  if (!(error instanceof Failed) || /could not be loaded/.test(why)) {
    return `${new URL(address, location.href).pathname.split("/").at(-1)} cannot be loaded. Serve it with the page; a single-file page has none.`;
  }
  return `${why.replace(/\.$/, "")}.`;
}

/** The tokens that may come next in a text. */
export class Allowed {
  constructor(
    private readonly bits: Uint32Array,
    readonly count: number,
  ) {}

  has(id: number): boolean {
    return ((this.bits[id >>> 5]! >>> (id & 31)) & 1) === 1;
  }

  /** Returns `texels` RGBA texels of numbers with 16 bits each, as `ops.mask_logits` reads them. */
  mask(texels: number): Float32Array {
    const found = new Float32Array(4 * texels);
    this.bits.forEach((word, i) => {
      if (2 * i < found.length) found[2 * i] = word & 0xffff;
      if (2 * i + 1 < found.length) found[2 * i + 1] = word >>> 16;
    });
    return found;
  }
}

/** Follows a constrained text token by token. */
export class Matcher {
  private next: Promise<Allowed | null>;

  constructor(
    private readonly vocabulary: GrammarVocabulary,
    bits: Uint32Array,
    private readonly follow: (token: number) => Promise<Uint32Array>,
  ) {
    this.next = Promise.resolve(this.read(bits));
  }

  /** Resolves to the tokens that may come next; null if the text is complete and nothing can follow it. */
  get allowed(): Promise<Allowed | null> {
    return this.next;
  }

  /** Appends a token, one of `allowed`. */
  accept(token: number): void {
    if (this.vocabulary.ends.includes(token)) return;
    this.next = this.follow(token).then((bits) => this.read(bits));
    this.next.catch(() => {}); // a caller that awaits `allowed` receives the error
  }

  /** Returns the tokens of an answer's bits, of which the one after the vocabulary says that the text may end. */
  private read(bits: Uint32Array): Allowed | null {
    const { size, ends } = this.vocabulary;
    const own = bits.slice(0, (size >>> 5) + 1);
    const ending = (own[size >>> 5]! >>> (size & 31)) & 1;
    own[size >>> 5]! &= size & 31 ? (1 << (size & 31)) - 1 : 0;
    let count = 0;
    for (let word of own) for (; word; word &= word - 1) count++;
    if (!count) return null;
    if (ending) for (const id of ends) own[id >>> 5]! |= 1 << (id & 31);
    return new Allowed(own, count + (ending ? ends.length : 0));
  }
}
