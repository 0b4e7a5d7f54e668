// Connects to a server that runs a model's later blocks: sends hidden states and receives tokens, over a WebSocket that
// reconnects.

import { signal, type ReadonlySignal } from "@preact/signals-core";
import { AGAIN, ANSWER_TIMEOUT_MS, PROTOCOL } from "../generated/protocols";
import type { Ask, Failed, Look, Looked, Open, Opened, Step, Stepped as StepAnswer } from "../generated/split-messages";
import { PageError } from "../gl/errors";
import { unlessAborted } from "../gl/wait";
import { ReconnectingSocket, Refused, type SocketData, type SocketStatus } from "../io/socket";
import type { Values } from "./capture";
import type { Candidate } from "./sampling";
import { decode, encode, packStates, unpackStates, type Wire } from "./split-wire";

/** True for the code of an error after which the client reconnects and sends its rows again. */
const isAgain = (code: string) => (AGAIN as readonly string[]).includes(code);

const TIMES = {
  accept: 10_000,
  admit: ANSWER_TIMEOUT_MS, // the server may first finish computing for other clients
  retry: 60_000,
  wait: { first: 100, heard: 0, most: 2000 },
};
const LOOK_TIMEOUT_MS = 10_000; // ms that `look` waits for a connection

export interface SplitSettings {
  server: string;
  wire: Wire;
  digest: string;
  /**
   * The blocks (and the head: the final norm and the logits) that the server runs; null: the page has all blocks too,
   * and `Split.aim` sets the server's part.
   */
  rest: string | null;
  /** The side that computes the logits if the split point is fixed. */
  head: "server" | "page";
  /** Names of the residual stream's states: after the embedding, and after each block of the page and the server. */
  stream: string[];
}

export interface Chosen {
  id: number;
  p?: number;
  sampled?: number;
  top?: Candidate[];
  logits?: Float32Array;
}

/** A server's answer to a step. */
export interface Stepped {
  chosen: Chosen[];
  /** The server's hidden states, if the page has the head. */
  hidden: Float32Array | null;
  crossing: Crossing;
}

/** The cost of one step: bytes both ways, and milliseconds in the page, on the network and on the server. */
export interface Crossing {
  /** Number of blocks that ran in the page. */
  blocks: number;
  rows: number;
  sent: number;
  received: number;
  localMs: number;
  networkMs: number;
  remoteMs: number;
}

/** Thrown if the server's session (its cache of a text) holds only `held` rows: later rows must be sent again. */
export class Forgotten extends Error {
  constructor(readonly held: number) {
    super(`the session holds ${held} rows`);
  }
}

interface Answer {
  header: StepAnswer | Looked;
  payload: Uint8Array<ArrayBuffer>;
  networkMs: number;
  /** Bytes of the answer. */
  bytes: number;
}

interface Waiting {
  seq: number;
  sent: number;
  bytes: number;
  resolve: (answer: Answer) => void;
  reject: (error: Error) => void;
}

const LATEST = 8; // number of round trips whose mean decides if latency is high
const HIGH_LATENCY = 20; // minimum ms on the network that counts as high latency

/**
 * True if there are at least `LATEST` round trips and their mean time on the network is more than `HIGH_LATENCY` ms and
 * more than the mean time that both sides spend on computing.
 */
export function highLatency(latest: readonly Pick<Crossing, "localMs" | "networkMs" | "remoteMs">[]): boolean {
  const mean = (value: (c: (typeof latest)[number]) => number) =>
    latest.reduce((sum, c) => sum + value(c), 0) / latest.length;
  const wire = mean((c) => c.networkMs);
  return latest.length >= LATEST && wire > HIGH_LATENCY && wire > mean((c) => c.localMs + c.remoteMs);
}

export type SplitStatus = SocketStatus;

export class Split {
  /** Ids of the tokens whose rows the server holds. */
  held: number[] = [];
  private readonly crossed = signal<Crossing | null>(null);
  /** True if the server refused the access token or requires one. */
  wantsToken = false;
  /** The access token, for a server that requires one. */
  token: string | null = null;
  reconnects = 0;
  /** True: guess several tokens and check them in one round trip; null: only if latency is high. */
  speculate: boolean | null = null;
  /** Number of guessed tokens (`guessed`), and of correct guesses (`accepted`). */
  guessed = 0;
  accepted = 0;
  private readonly latest: Crossing[] = [];
  /** True while a server is needed. The page then reconnects at once if the connection is lost. */
  wanted: () => boolean = () => true;
  /** The part of the model that the server runs, such as `6-11,head`. */
  part: string;
  private opening = ""; // the part that the latest `hello` requested
  private readonly socket: ReconnectingSocket;
  private session: string | null = null;
  private next = 0;
  private readonly waiting: Waiting[] = [];

  constructor(readonly settings: SplitSettings) {
    this.part = settings.rest ?? "";
    this.socket = new ReconnectingSocket({
      url: settings.server,
      times: TIMES,
      wanted: () => this.wanted(),
      hello: () => this.hello(),
      admit: (data) => this.admit(data),
      receive: (data) => this.hear(data),
      lost: () => this.broke(),
    });
  }

  /** Makes the server run another part from now on, in a new session. */
  aim(part: string): void {
    if (part === this.part) return;
    this.part = part;
    this.session = null;
    this.held = [];
    this.socket.drop();
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(0));
  }

  /** The state of the connection; `problem` describes what is wrong. Reading either subscribes to its changes. */
  get status(): SplitStatus {
    return this.socket.state.value.status;
  }

  get problem(): string {
    return this.socket.state.value.problem;
  }

  /** The cost of the latest token; null: none yet. */
  get crossing(): ReadonlySignal<Crossing | null> {
    return this.crossed;
  }

  /** Reports the cost of a token. */
  report(crossing: Crossing): void {
    this.crossed.value = { ...crossing }; // a new object, so that the signal reports an equal cost too
  }

  /** True if tokens are to be guessed. */
  get guesses(): boolean {
    return this.speculate ?? highLatency(this.latest);
  }

  /**
   * Returns how many leading rows of `ids` the server holds. The last row does not count, because it must be sent to
   * get the next token.
   */
  common(ids: readonly number[]): number {
    let held = 0;
    while (held < ids.length - 1 && held < this.held.length && ids[held] === this.held[held]) held++;
    return held;
  }

  /** Connects unless connected. Tries for `TIMES.retry` ms or until `signal` aborts. */
  async connect(signal?: AbortSignal): Promise<void> {
    if (this.socket.connected) return;
    return this.unlessStopped(this.socket.connect(), signal);
  }

  /** Resolves as `work` does, or rejects when `signal` aborts; the work itself continues. */
  unlessStopped<T>(work: Promise<T>, signal?: AbortSignal): Promise<T> {
    return unlessAborted(work, signal, () => Promise.reject(new PageError(this.problem || "Stopped.")));
  }

  private hello(): Uint8Array<ArrayBuffer> {
    const { wire, digest } = this.settings;
    const hello: Open = { op: "open", protocol: PROTOCOL, model: digest, wire, part: (this.opening = this.part) };
    if (this.session) hello.session = this.session;
    if (this.token) hello.token = this.token;
    return encode(hello);
  }

  /** Receives the answer to `hello`. Throws if the server does not admit this page. */
  private admit(data: SocketData): true {
    const { header } = decode(data as ArrayBuffer);
    if (header.op === "error") {
      this.wantsToken = header.code === "token";
      throw isAgain(header.code) ? new PageError(report(header)) : new Refused(report(header));
    }
    const { holds, session, held, seq } = header as Opened;
    if (holds !== this.opening) {
      throw new Refused(`The server holds ${holds} and this page needs ${this.opening}.`);
    }
    if (this.opening !== this.part) throw new PageError("Another part is needed now.");
    if (session !== this.session) this.held = [];
    this.held.length = Math.min(this.held.length, held);
    this.session = session;
    this.next = seq + 1;
    return true;
  }

  private broke(): void {
    this.reconnects++;
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(this.held.length));
  }

  private hear(data: SocketData): void {
    const { header, payload } = decode(data as ArrayBuffer);
    const bytes = (data as ArrayBuffer).byteLength;
    if (header.op === "error") {
      const again = isAgain(header.code);
      if (again) this.session = null;
      const error = again ? new Forgotten(0) : new PageError(report(header));
      if (again) this.held = [];
      for (const waiting of this.waiting.splice(0)) waiting.reject(error);
      return;
    }
    const at = this.waiting.findIndex((w) => w.seq === header.seq);
    if (at < 0 || header.op === "opened") return; // the answer to an abandoned request
    const waiting = this.waiting.splice(at, 1)[0]!;
    this.socket.heard();
    const there = (header.ms ?? 0) + (header.op === "stepped" ? (header.queue_ms ?? 0) : 0);
    waiting.resolve({ header, payload, bytes, networkMs: Math.max(0, performance.now() - waiting.sent - there) });
  }

  /** Sends a request and resolves to its answer. Rejects with `Forgotten` if the page is not connected. */
  private ask(header: Omit<Step, "seq"> | Omit<Look, "seq">, payload: Uint8Array): Promise<Answer & { sent: number }> {
    const { socket } = this;
    if (!socket.connected) return Promise.reject(new Forgotten(this.held.length));
    const seq = this.next++;
    const message = encode({ ...header, seq }, payload);
    return new Promise((resolve, reject) => {
      const sent = message.byteLength;
      const late = setTimeout(() => socket.lose(), ANSWER_TIMEOUT_MS);
      this.waiting.push({
        seq,
        sent: performance.now(),
        bytes: sent,
        resolve: (answer) => {
          clearTimeout(late);
          resolve({ ...answer, sent });
        },
        reject: (error) => {
          clearTimeout(late);
          reject(error);
        },
      });
      socket.send(message);
    });
  }

  /**
   * Sends the hidden states `[n, width]` of `n` rows of `ids`, from row `pos` on. `own`: the number of blocks that the
   * page ran for these rows, and the time in ms. With `ask`, the answer has the token after these rows; with guesses,
   * also the token after each correct guess.
   */
  async step(
    ids: readonly number[],
    pos: number,
    n: number,
    states: Float32Array,
    own: { blocks: number; ms: number },
    ask: Ask | null,
  ): Promise<Stepped> {
    const header: Omit<Step, "seq"> = { op: "step", pos, n };
    if (ask) header.ask = ask;
    this.held.length = Math.min(this.held.length, pos);
    const answer = await this.ask(header, packStates(states, n, this.settings.wire));
    const guessed = ask?.guesses?.length ?? 0;
    const tokens = ask && this.settings.head === "server" ? chosen(answer.header, guessed + 1) : [];
    this.held = ids.slice(0, pos + (guessed ? tokens.length : n)); // the server drops the rows after a wrong guess
    this.guessed += guessed;
    this.accepted += guessed ? tokens.length - 1 : 0;
    const remoteMs = answer.header.ms ?? 0;
    const rows = guessed ? tokens.length : n; // rows that the server retains
    const crossing = {
      blocks: own.blocks,
      rows,
      sent: answer.sent,
      received: answer.bytes,
      localMs: own.ms,
      networkMs: answer.networkMs,
      remoteMs,
    };
    if (n === 1 + guessed) this.latest.push(crossing);
    if (this.latest.length > LATEST) this.latest.shift();
    const found: Stepped = { chosen: tokens, hidden: null, crossing };
    if (this.settings.head === "page")
      found.hidden = unpackStates(answer.payload, n, states.length / n, this.settings.wire);
    if (ask?.logits) tokens[0]!.logits = new Float32Array(answer.payload.slice().buffer);
    return found;
  }

  /**
   * Returns activations of the server's blocks. `states` are the hidden states `[n, width]` of a text's first `n` rows.
   * With `end`, also returns the logits, or the last hidden states if the page has the head. With `head`, the server
   * passes the rows straight to the head; the rows may then be states after any block.
   */
  async look(
    states: Float32Array,
    n: number,
    names: readonly string[],
    end: boolean,
    head = false,
  ): Promise<Map<string, Values>> {
    for (let attempt = 0; ; attempt++) {
      await this.connect(AbortSignal.timeout(LOOK_TIMEOUT_MS));
      try {
        const { header, payload } = await this.ask(
          { op: "look", n, names, head, end },
          packStates(states, n, this.settings.wire),
        );
        return arrays(header, payload);
      } catch (error) {
        if (!(error instanceof Forgotten) || attempt > 2) throw error; // otherwise retry: `look` needs no session state
      }
    }
  }

  /** Abandons the session, and the requests that wait for an answer. Call this when all blocks run in the page. */
  leave(): void {
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(0));
    this.held = [];
    this.session = null;
  }

  /** Leaves the session and ends the connection. The page does not connect again. */
  close(): void {
    this.wanted = () => false;
    this.leave();
    this.socket.close();
  }

  /** Connects again with an access token, after the server has refused the connection. */
  async retry(token: string): Promise<void> {
    this.token = token;
    await this.connect();
  }
}

/** Returns the text of a server's error message. */
const report = ({ message }: Failed) => `The server reports: ${message}.`;

/** Returns the 1 to `most` tokens of an answer. Throws PageError for any other number. */
function chosen(header: Answer["header"], most: number): Chosen[] {
  const tokens: unknown = header.op === "stepped" && header.tokens;
  if (
    !Array.isArray(tokens) ||
    !tokens.length ||
    tokens.length > most ||
    !tokens.every((id) => Number.isInteger(id) && id >= 0)
  ) {
    throw new PageError("The server answered without a token.");
  }
  const weighed = (header as StepAnswer).top ?? []; // (id, p, sampled) of the token itself, then of its alternatives
  return (tokens as number[]).map((id, i) => {
    const [own, ...best] = weighed[i] ?? [];
    if (!own) return { id };
    return { id, p: own[1], sampled: own[2], top: best.map(([other, p, sampled]) => ({ id: other, p, sampled })) };
  });
}

function arrays(header: Answer["header"], payload: Uint8Array<ArrayBuffer>): Map<string, Values> {
  const found = new Map<string, Values>();
  let at = 0;
  const listed: unknown = header.op === "looked" && header.arrays;
  if (!Array.isArray(listed) || !listed.every(([name, shape]) => typeof name === "string" && Array.isArray(shape))) {
    throw new PageError("The server's answer lists no arrays.");
  }
  for (const [name, shape] of listed as Looked["arrays"]) {
    const bytes = 4 * shape.reduce((a, b) => a * b, 1);
    if (at + bytes > payload.length) throw new PageError("The server's answer is incomplete.");
    found.set(name, { shape: [...shape], data: new Float32Array(payload.slice(at, at + bytes).buffer) });
    at += bytes;
  }
  return found;
}
