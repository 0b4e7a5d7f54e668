// Runs a model's later blocks on a server: sends hidden states and receives tokens, over a WebSocket that reconnects.

import { signal, type ReadonlySignal } from "@preact/signals-core";
import { AGAIN, ANSWER_TIMEOUT_MS, PROTOCOL } from "../generated/protocols";
import { PageError } from "../gl/errors";
import type { Values } from "./capture";
import type { Candidate } from "./sampling";
import { decode, encode, packStates, unpackStates, type Message, type Wire } from "./split-wire";

/** True for an error code after which the client reconnects. */
const isAgain = (code: string) => (AGAIN as readonly string[]).includes(code);

const RECONNECT_TIMEOUT_MS = 60_000; // ms for which a lost server is retried
const BACKOFF = [100, 2000] as const; // ms between attempts to connect: first and maximum
const CONNECT_TIMEOUT_MS = 10_000; // ms within which a server must accept a connection
const LOOK_TIMEOUT_MS = 10_000; // ms that `look` waits for a connection

export interface SplitSettings {
  server: string;
  wire: Wire;
  digest: string;
  /** The part that the server runs; null: the page holds all blocks, and `Split.aim` sets the server's part. */
  rest: string | null;
  /** The side that computes the logits if the split point is fixed. */
  head: "server" | "page";
  /** Names of the residual stream, after the embedding and after each block of both sides. */
  stream: string[];
}

/** The settings with which the side that has the head samples; see `Ask` in glgpt/wire/messages.py. */
export interface Ask {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number;
  seed: number;
  draw: number;
  alternatives: number;
  /** The rows are a token followed by these guesses. The answer has the token after each correct row. */
  guesses?: readonly number[];
  /** True to receive all logits of the last row. */
  logits?: boolean;
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

/** Thrown if the server's session has only `held` rows: the later ones must be sent again. */
export class Forgotten extends Error {
  constructor(readonly held: number) {
    super(`the session holds ${held} rows`);
  }
}

class Refused extends PageError {
  constructor(
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}

interface Waiting {
  seq: number;
  sent: number;
  bytes: number;
  resolve: (answer: { header: Message; payload: Uint8Array<ArrayBuffer>; networkMs: number; bytes: number }) => void;
  reject: (error: Error) => void;
}

const LATEST = 8; // round trips over which latency is judged
const HIGH_LATENCY = 20; // minimum ms on the network that counts as high latency

/** True if these round trips spend, on average, longer on the network than both sides compute. */
export function highLatency(latest: readonly Pick<Crossing, "localMs" | "networkMs" | "remoteMs">[]): boolean {
  const mean = (value: (c: (typeof latest)[number]) => number) =>
    latest.reduce((sum, c) => sum + value(c), 0) / latest.length;
  const wire = mean((c) => c.networkMs);
  return latest.length >= LATEST && wire > HIGH_LATENCY && wire > mean((c) => c.localMs + c.remoteMs);
}

export type SplitStatus = "connected" | "connecting" | "idle" | "refused";

export class Split {
  /** Ids of the tokens whose rows the server holds. */
  held: number[] = [];
  private readonly connection = signal<{ status: SplitStatus; problem: string }>({ status: "idle", problem: "" });
  private readonly crossed = signal<Crossing | null>(null);
  /** True if the server refused the access token or requires one. */
  wantsToken = false;
  /** The access token, for a server that requires one. */
  token: string | null = null;
  reconnects = 0;
  /** True to guess several tokens and check them in one round trip; null: only if latency is high. */
  speculate: boolean | null = null;
  /** Number of guessed tokens, and of correct ones. */
  guessed = 0;
  accepted = 0;
  private readonly latest: Crossing[] = [];
  /** Returns true while a server is needed, so that a lost connection is made again at once. */
  wanted: () => boolean = () => true;
  private wait = 0; // ms before the next attempt to connect; 0 after an answer
  /** The part that the server runs. */
  part: string;
  private socket: WebSocket | null = null;
  private opening: Promise<void> | null = null;
  private session: string | null = null;
  private next = 0;
  private readonly waiting: Waiting[] = [];

  constructor(readonly settings: SplitSettings) {
    this.part = settings.rest ?? "";
  }

  /** Makes the server run another part from now on, in a new session. */
  aim(part: string): void {
    if (part === this.part) return;
    this.part = part;
    this.session = null;
    this.held = [];
    const { socket } = this;
    this.socket = null;
    socket?.close();
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(0));
  }

  /** The state of the connection, and what is wrong with it. Reading them subscribes to their changes. */
  get status(): SplitStatus {
    return this.connection.value.status;
  }

  get problem(): string {
    return this.connection.value.problem;
  }

  /** The cost of the latest token; null: none yet. */
  get crossing(): ReadonlySignal<Crossing | null> {
    return this.crossed;
  }

  /** Reports the cost of a token. */
  report(crossing: Crossing): void {
    this.crossed.value = { ...crossing }; // another object, so that an equal cost is a change too
  }

  /** True if tokens are to be guessed. */
  get guesses(): boolean {
    return this.speculate ?? highLatency(this.latest);
  }

  private say(status: SplitStatus, problem = ""): void {
    this.connection.value = { status, problem };
  }

  /** Returns how many of these ids' rows the server holds. The last row does not count: the next token follows it. */
  common(ids: readonly number[]): number {
    let held = 0;
    while (held < ids.length - 1 && held < this.held.length && ids[held] === this.held[held]) held++;
    return held;
  }

  /** Connects, unless connected. Tries for `RECONNECT_TIMEOUT_MS` ms or until `signal` aborts. */
  async connect(signal?: AbortSignal): Promise<void> {
    if (this.socket) return;
    this.opening ??= this.reach().finally(() => (this.opening = null));
    return this.unlessStopped(this.opening, signal);
  }

  /** Resolves as `work` does, or rejects when `signal` aborts; the work itself continues. */
  unlessStopped<T>(work: Promise<T>, signal?: AbortSignal): Promise<T> {
    if (!signal) return work;
    const stopped = new Promise<never>((_, reject) => {
      const stop = () => reject(new PageError(this.problem || "Stopped."));
      if (signal.aborted) stop();
      else signal.addEventListener("abort", stop, { once: true });
    });
    return Promise.race([work, stopped]);
  }

  private async reach(): Promise<void> {
    const end = performance.now() + RECONNECT_TIMEOUT_MS;
    for (;;) {
      if (!this.wanted()) {
        this.say("idle");
        throw new PageError("No server is needed now.");
      }
      this.say("connecting", this.problem);
      await new Promise((resolve) => setTimeout(resolve, this.wait));
      this.wait = Math.min(2 * this.wait || BACKOFF[0], BACKOFF[1]);
      try {
        await this.open();
        this.say("connected");
        return;
      } catch (error) {
        const said = error instanceof Error ? error.message : String(error);
        if (error instanceof Refused && !isAgain(error.code)) {
          this.wantsToken = error.code === "token";
          this.say("refused", said);
          throw error;
        }
        if (performance.now() + this.wait > end) {
          this.say("idle", said);
          throw new PageError(said);
        }
        this.say("connecting", said);
      }
    }
  }

  private open(): Promise<void> {
    const { server, wire, digest } = this.settings;
    const { part } = this;
    return new Promise((resolve, reject) => {
      let socket: WebSocket;
      try {
        socket = new WebSocket(server);
      } catch {
        reject(new Refused(`This page cannot connect to ${server}: its address or policy forbids it.`, "unsuitable"));
        return;
      }
      socket.binaryType = "arraybuffer";
      let opened = false;
      const giveUp = () => {
        socket.close();
        reject(new PageError(`${server} does not answer.`)); // rejects now, since closing may take as long again
      };
      let late = setTimeout(giveUp, CONNECT_TIMEOUT_MS);
      socket.onopen = () => {
        clearTimeout(late);
        late = setTimeout(giveUp, ANSWER_TIMEOUT_MS); // the server may first finish computing for other clients
        const hello: Message = { op: "open", protocol: PROTOCOL, model: digest, wire, part };
        if (this.session) hello["session"] = this.session;
        if (this.token) hello["token"] = this.token;
        socket.send(encode(hello));
      };
      socket.onmessage = (event: MessageEvent<ArrayBuffer>) => {
        try {
          const { header, payload } = decode(event.data);
          if (opened) {
            this.hear(header, payload, event.data.byteLength);
            return;
          }
          clearTimeout(late);
          if (header.op === "error") throw refused(header);
          if (header["holds"] !== part) {
            throw new Refused(`The server holds ${String(header["holds"])} and this page needs ${part}.`, "unsuitable");
          }
          if (part !== this.part) throw new PageError("Another part is needed now.");
          opened = true;
          if (header["session"] !== this.session) this.held = [];
          this.held.length = Math.min(this.held.length, Number(header["held"]));
          this.session = String(header["session"]);
          this.next = Number(header["seq"]) + 1;
          this.socket = socket;
          resolve();
        } catch (error) {
          reject(error instanceof Error ? error : new Error(String(error)));
          socket.close();
        }
      };
      socket.onclose = () => {
        clearTimeout(late);
        if (this.socket === socket) this.broke();
        reject(new PageError(`No connection to ${server}.`));
      };
    });
  }

  private broke(): void {
    this.socket = null;
    this.reconnects++;
    this.say("connecting", `Lost the connection to ${this.settings.server}; trying again.`);
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(this.held.length));
    if (this.wanted()) this.connect().catch(() => {}); // `problem` says why
  }

  private hear(header: Message, payload: Uint8Array<ArrayBuffer>, bytes: number): void {
    if (header.op === "error") {
      const code = String(header["code"]);
      const again = isAgain(code);
      if (again) this.session = null;
      const error = again ? new Forgotten(0) : refused(header);
      if (again) this.held = [];
      for (const waiting of this.waiting.splice(0)) waiting.reject(error);
      return;
    }
    const at = this.waiting.findIndex((w) => w.seq === header["seq"]);
    if (at < 0) return; // the answer to an abandoned request
    const waiting = this.waiting.splice(at, 1)[0]!;
    this.wait = 0;
    const there = Number(header["ms"] ?? 0) + Number(header["queue_ms"] ?? 0);
    waiting.resolve({ header, payload, bytes, networkMs: Math.max(0, performance.now() - waiting.sent - there) });
  }

  /** Sends a request and resolves to its answer. Rejects with `Forgotten` without a connection. */
  private ask(header: Message, payload: Uint8Array): Promise<Parameters<Waiting["resolve"]>[0] & { sent: number }> {
    const { socket } = this;
    if (!socket) return Promise.reject(new Forgotten(this.held.length));
    const seq = this.next++;
    const message = encode({ ...header, seq }, payload);
    return new Promise((resolve, reject) => {
      const sent = message.byteLength;
      const late = setTimeout(() => {
        if (this.socket !== socket) return;
        this.broke();
        socket.close();
      }, ANSWER_TIMEOUT_MS);
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

  /** Sends the hidden states `[n, width]` of rows `pos`.. of `ids`. With `ask`, the answer has the token after them. */
  async step(
    ids: readonly number[],
    pos: number,
    n: number,
    states: Float32Array,
    own: { blocks: number; ms: number },
    ask: Ask | null,
  ): Promise<Stepped> {
    const header: Message = { op: "step", pos, n };
    if (ask) header["ask"] = ask;
    this.held.length = Math.min(this.held.length, pos);
    const answer = await this.ask(header, packStates(states, n, this.settings.wire));
    const guessed = ask?.guesses?.length ?? 0;
    const tokens = ask && this.settings.head === "server" ? chosen(answer.header, guessed + 1) : [];
    this.held = ids.slice(0, pos + (guessed ? tokens.length : n)); // the server drops the rows after a wrong guess
    this.guessed += guessed;
    this.accepted += guessed ? tokens.length - 1 : 0;
    const remoteMs = Number(answer.header["ms"] ?? 0);
    const rows = guessed ? tokens.length : n; // that the server retains
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
   * Returns activations of the server's blocks for the hidden states `[n, width]` of a text's rows from the first on.
   * With `end`, also returns the logits, or the last hidden states if the page has the head. With `head`, the rows go
   * straight to the head; they may then be states between any blocks.
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

  /** Abandons requests that wait for an answer, since all blocks run in the page now. */
  leave(): void {
    for (const waiting of this.waiting.splice(0)) waiting.reject(new Forgotten(0));
    this.held = [];
    this.session = null;
  }

  /** Connects again with an access token, after the server refused. */
  async retry(token: string): Promise<void> {
    this.token = token;
    await this.connect();
  }
}

/** Returns the error for a server's error message. */
const refused = ({ message, code }: Message) => new Refused(`The server reports: ${String(message)}.`, String(code));

/** Returns the tokens of an answer, from 1 to `most`. */
function chosen(header: Message, most: number): Chosen[] {
  const tokens = header["tokens"];
  if (
    !Array.isArray(tokens) ||
    !tokens.length ||
    tokens.length > most ||
    !tokens.every((id) => Number.isInteger(id) && id >= 0)
  ) {
    throw new PageError("The server answered without a token.");
  }
  const weighed = (header["top"] as [number, number, number][][] | undefined) ?? []; // (id, p, sampled), own one first
  return (tokens as number[]).map((id, i) => {
    const [own, ...best] = weighed[i] ?? [];
    if (!own) return { id };
    return { id, p: own[1], sampled: own[2], top: best.map(([other, p, sampled]) => ({ id: other, p, sampled })) };
  });
}

function arrays(header: Message, payload: Uint8Array<ArrayBuffer>): Map<string, Values> {
  const found = new Map<string, Values>();
  let at = 0;
  const listed = header["arrays"] as [string, number[]][] | undefined;
  if (!Array.isArray(listed) || !listed.every(([name, shape]) => typeof name === "string" && Array.isArray(shape))) {
    throw new PageError("The server's answer lists no arrays.");
  }
  for (const [name, shape] of listed) {
    const bytes = 4 * shape.reduce((a, b) => a * b, 1);
    if (at + bytes > payload.length) throw new PageError("The server's answer is incomplete.");
    found.set(name, { shape, data: new Float32Array(payload.slice(at, at + bytes).buffer) });
    at += bytes;
  }
  return found;
}
