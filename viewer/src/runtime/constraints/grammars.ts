// Finds which tokens may come next in texts that must match a constraint. The work is done in a worker, which is loaded
// when the first constraint is used.

import { PageError, reason } from "../gl/errors";
import { Queue, unlessAborted } from "../gl/wait";
import { readBytes, writtenBytes } from "./characters";
import { checkedConstraint, unusable, type Constraint } from "./constraint";
import type { Answer, Job, Next } from "./jobs";
import address from "./grammar-worker?worker&url";

const LOAD_MS = 60_000; // maximum ms to fetch the worker and read the vocabulary
const COMPILE_MS = 20_000;
const TOKEN_MS = 20_000;
const GRACE_MS = 500; // maximum ms for the answer to a job after its text was stopped; then the worker is ended

/** Describes a model's vocabulary. */
export interface GrammarVocabulary {
  size: number;
  /** The ids that end a text. */
  ends: readonly number[];
  /** Returns the bytes of a token; no bytes if a constrained text cannot contain the token. */
  bytes: (id: number) => Iterable<number>;
}

/** The worker, or a replacement in tests. */
export type GrammarWorker = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/** Starts the worker. If the script is on another origin than the page, starts a copy of the script. */
async function started(): Promise<GrammarWorker> {
  try {
    return new Worker(address, { type: "module" });
  } catch (error) {
    const response = await fetch(address).catch(() => null);
    if (!response?.ok) throw error;
    const copy = URL.createObjectURL(await response.blob());
    const worker = new Worker(copy, { type: "module" });
    setTimeout(() => URL.revokeObjectURL(copy), LOAD_MS); // the worker has read the copy by then
    return worker;
  }
}

/** Starts constrained texts, one at a time: a new matcher ends the previous one. */
export class Grammars {
  private worker: GrammarWorker | null = null;
  private closings = 0;
  private readonly jobs = new Queue(); // sends one job at a time, because an answer does not name its job

  constructor(
    private readonly vocabulary: GrammarVocabulary,
    private readonly start: () => Promise<GrammarWorker> = started,
  ) {}

  /**
   * Returns a matcher at the beginning of a text. Rejects with ConstraintError for a constraint that cannot be used,
   * with PageError if the worker cannot be loaded, and with the reason of `signal` as soon as `signal` aborts.
   */
  async matcher(constraint: Constraint, signal?: AbortSignal): Promise<Matcher> {
    const { constraint: copy, what } = checkedConstraint(constraint);
    const compile = async () => {
      if (!this.worker) await this.load();
      signal?.throwIfAborted();
      return this.sent({ constraint: copy }, COMPILE_MS, signal);
    };
    const answer = await this.queued(compile, signal).catch((error: unknown) => {
      throw error instanceof PageError || signal?.aborted ? error : unusable(what, reason(error));
    });
    return new Matcher(this.vocabulary, next(answer), (job) => this.followed(what, job, signal));
  }

  /** Ends the worker. */
  close(): void {
    this.closings++;
    this.worker?.terminate();
    this.worker = null;
  }

  private async load(): Promise<void> {
    const { size, ends, bytes } = this.vocabulary;
    const written = (_: unknown, id: number) => (ends.includes(id) ? "" : writtenBytes(bytes(id)));
    const vocabulary = [...Array.from({ length: size }, written), ""];
    const { closings } = this;
    try {
      const worker = await this.start();
      if (closings !== this.closings)
        worker.terminate(); // `close` was called while the worker started
      else this.worker = worker;
      await this.sent({ vocabulary }, LOAD_MS);
    } catch (error) {
      this.close();
      throw new PageError(`Constraints cannot be used in this page: ${cause(error)}`);
    }
  }

  /** Sends a job of a matcher. Returns the worker's answer; null if the text was stopped. */
  private async followed(what: string, job: Job, signal?: AbortSignal): Promise<Answer | null> {
    try {
      return await this.queued(() => this.sent(job, TOKEN_MS, signal), signal);
    } catch (error) {
      if (signal?.aborted) return null;
      throw new PageError(`The ${what} cannot be followed further: ${reason(error)}. Simplify it.`);
    }
  }

  /** Runs `work` after all earlier jobs. Rejects as soon as `signal` aborts. */
  private queued<T>(work: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const done = this.jobs.run(() => {
      signal?.throwIfAborted();
      return work();
    });
    return unlessAborted(done, signal, () => Promise.reject(signal!.reason as Error));
  }

  /**
   * Sends a job and returns the answer. Rejects with Failed if the worker could not do the job. Ends the worker if
   * it fails or answers too late: after more than `limit` ms, or more than GRACE_MS after an abort.
   */
  private async sent(job: Job, limit: number, signal?: AbortSignal): Promise<Answer> {
    const { worker } = this;
    if (!worker) throw new Failed("its worker has ended");
    let timer: ReturnType<typeof setTimeout> | undefined;
    let stop = () => {};
    const answer = await new Promise<Answer>((resolve) => {
      worker.onmessage = ({ data }: MessageEvent<Answer>) => resolve(data);
      worker.onerror = (event) => {
        event.preventDefault();
        resolve({ failed: event.message || "its worker could not be loaded" });
      };
      const wait = (ms: number, failed: string) => (timer = setTimeout(() => resolve({ failed }), ms));
      const advice = "constraint" in job ? " to compile; simplify it, such as its repetitions" : "";
      wait(limit, `it takes more than ${limit / 1000} s${advice}`);
      stop = () => {
        clearTimeout(timer);
        wait(GRACE_MS, "it was stopped");
      };
      signal?.addEventListener("abort", stop, { once: true });
      worker.postMessage(job);
    });
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
    if ("failed" in answer) this.close();
    if ("failed" in answer || "refused" in answer)
      throw new Failed("failed" in answer ? answer.failed : answer.refused);
    return answer;
  }
}

/** Thrown for a job that the worker could not do. */
class Failed extends Error {}

/** Returns why the worker did not start, and the remedy. */
function cause(error: unknown): string {
  const why = reason(error);
  if (/unsafe-eval|CompileError|Content Security/i.test(why)) {
    return "the Content-Security-Policy forbids WebAssembly. Add 'wasm-unsafe-eval' to its script-src.";
  }
  if (!(error instanceof Failed) || /could not be loaded/.test(why)) {
    return (
      `${new URL(address, location.href).pathname.split("/").at(-1)} cannot be loaded. Serve it with the page; ` +
      "a single-file page has none."
    );
  }
  return `${why.replace(/\.$/, "")}.`;
}

/** Returns the continuation that an answer describes. Throws PageError if the answer describes none. */
function next(answer: Answer): Next {
  if (!("bits" in answer)) throw new PageError("The grammar's worker sent an unexpected answer. Try again.");
  return answer;
}

/** Returns the number of set bits of a 32-bit integer: adds up neighbouring groups of 1, 2 and 4 bits, then bytes. */
function setBits(word: number): number {
  const pairs = word - ((word >>> 1) & 0x55555555);
  const fours = (pairs & 0x33333333) + ((pairs >>> 2) & 0x33333333);
  return Math.imul((fours + (fours >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

/** The tokens that may come next in a text. */
export class Allowed {
  constructor(
    private readonly bits: Uint32Array,
    readonly count: number,
    /** The text with which all continuations begin. */
    readonly forced: string,
  ) {}

  has(id: number): boolean {
    return ((this.bits[id >>> 5]! >>> (id & 31)) & 1) === 1;
  }

  /**
   * Returns the tokens' bits in `texels` RGBA texels, 16 bits per number, as `mask_logits` of glgpt/ops/sample.py reads
   * them.
   */
  mask(texels: number): Float32Array {
    const found = new Float32Array(4 * texels);
    this.bits.forEach((word, i) => {
      if (2 * i < found.length) found[2 * i] = word & 0xffff;
      if (2 * i + 1 < found.length) found[2 * i + 1] = word >>> 16;
    });
    return found;
  }
}

/** Tracks which tokens may come next in a constrained text. */
export class Matcher {
  private next: Promise<Allowed | null>;

  /** `follow` sends a job to the worker and resolves to the answer, or to null if the text was stopped. */
  constructor(
    private readonly vocabulary: GrammarVocabulary,
    first: Next,
    private readonly follow: (job: Job) => Promise<Answer | null>,
  ) {
    this.next = Promise.resolve(this.read(first));
  }

  /** Resolves to the tokens that may come next; null if the text was stopped, or is complete and cannot continue. */
  get allowed(): Promise<Allowed | null> {
    return this.next;
  }

  /** Appends tokens. Each must be allowed at its position. Does nothing if the last token ends the text. */
  accept(...tokens: number[]): void {
    if (this.vocabulary.ends.includes(tokens.at(-1)!)) return;
    this.next = this.follow({ tokens }).then((answer) => answer && this.read(next(answer)));
    this.next.catch(() => {}); // a caller that awaits `allowed` receives the error
  }

  /**
   * Resolves to a list: for each of these guessed tokens, up to the first that does not match, the tokens that may come
   * after it (null: the text must end there). The list is empty if the text was stopped. The text is unchanged.
   */
  async after(guesses: readonly number[]): Promise<(Allowed | null)[]> {
    const answer = await this.follow({ guesses });
    return answer && "after" in answer ? answer.after.map((each) => this.read(each)) : [];
  }

  /**
   * Returns the tokens that an answer allows; null if the text must end. The answer has one bit per token of the
   * vocabulary, and then one bit that is set if the text may end. If this last bit is set, the `ends` of the vocabulary
   * are allowed too.
   */
  private read({ bits, forced }: Next): Allowed | null {
    const { size, ends } = this.vocabulary;
    const own = bits.slice(0, (size >>> 5) + 1);
    const ending = (own[size >>> 5]! >>> (size & 31)) & 1;
    own[size >>> 5]! &= size & 31 ? (1 << (size & 31)) - 1 : 0;
    const count = own.reduce((sum, word) => sum + setBits(word), 0);
    if (!count) return null;
    if (ending) for (const id of ends) own[id >>> 5]! |= 1 << (id & 31);
    const text = new TextDecoder().decode(readBytes(forced), { stream: true }); // without an incomplete last character
    return new Allowed(own, count + (ending ? ends.length : 0), text);
  }
}
