// A page as a member of a federation: connects to the gateway and trains rounds. See docs/reference/protocols.md.

import { signal, untracked, type ReadonlySignal } from "@preact/signals-core";
import { ReconnectingSocket, Refused, type SocketData, type SocketStatus } from "../runtime/io/socket";
import { pause } from "../runtime/gl/wait";
import { must, PageError } from "../runtime/gl/errors";
import type { Offer } from "../runtime/engine/manifest";
import type { Ids } from "./batches";
import { FATAL, FRAME } from "../runtime/generated/protocols";
import { encode, shardStarts, type Dtype } from "./exchange";
import { readTokenizer, type About } from "./files";
import type { Store } from "./store";
import { tokenise } from "./tokenise";
import { isLost, type Trainer } from "./trainer";
import type { Training } from "./training";

const PROGRESS_INTERVAL_MS = 500; // ms between two progress messages of a round
const PING = 10_000; // ms between two pings
const STALL = 60_000; // ms without a message from the host after which the connection is closed
const TIMES = {
  accept: STALL,
  admit: STALL,
  retry: Infinity,
  wait: { first: 500, heard: 500, most: 4_000 },
  stall: STALL,
};

export interface FederateOptions {
  /** The invitation: a link that glgpt federate serve printed. */
  link: string;
  /** The user's own text to train on. It does not leave this browser. */
  text?: string;
  name?: string;
  onRound?: (round: RoundFigures) => void;
}

/** The known results of a round of the session. */
export interface RoundFigures {
  round: number;
  clients?: number;
  tokens?: number;
  loss?: number;
  validation_loss?: number;
  sample?: string;
  seconds?: number;
}

export interface Other {
  number: number;
  name: string;
  kind: string;
  step: number;
  loss: number | null;
  tokens_per_s: number;
  connections: number;
  said: string;
  aside: string;
}

interface Terms {
  id: string;
  name: string;
  rounds: number;
  local_steps: number;
  digest: string;
  tokenizer: string;
  dtype: Dtype;
  settings: { seed: number; tokenizer: string };
  ids: { count: number };
}

interface RoundMessage {
  round: number;
  attempt: string;
  steps: number;
  step: number;
  lr: number[];
  seconds_left: number;
  seed: number;
  shard: [number, number];
  bytes: number;
}

interface Round {
  message: RoundMessage;
  parameters: Float32Array;
  wrapUp: boolean;
  update: { said: Record<string, unknown>; bytes: Uint8Array<ArrayBuffer> } | null;
  answered: boolean;
}

interface Kept {
  resume: string;
  state?: Uint8Array<ArrayBuffer>;
  about?: About;
}

export type FederationStatus = "opening" | "waiting" | "training" | "sending" | "reconnecting" | "over" | "failed";

interface Invitation {
  base: string;
  token: string;
}

/** Parses an invitation link into the session's address and its token. Throws PageError for any other link. */
export function readLink(link: string): Invitation {
  const url = URL.parse(link.trim());
  const token = url?.hash.slice(1).split("together=").at(-1)?.split("&")[0] ?? "";
  if (!url || !/^https?:$/.test(url.protocol) || !token.includes(".")) {
    throw new PageError("This is not an invitation; paste the link that glgpt federate serve printed.");
  }
  return { base: new URL(url.pathname.replace(/train\/?(index\.html)?$/, ""), url).href, token };
}

type Shown =
  | "status"
  | "problem"
  | "doing"
  | "terms"
  | "member"
  | "name"
  | "round"
  | "step"
  | "deadline"
  | "tokensPerS"
  | "trained"
  | "lastAnswer";

/** The state of a membership, for those who show it. */
export type FederationState = Readonly<Pick<Federation, Shown | "rounds" | "others" | "paused">>;

/** The page's membership in a session. */
export class Federation {
  status: FederationStatus = "opening";
  problem = "";
  doing = "Opening the invitation";
  terms: Terms | null = null;
  member = -1;
  name = "";
  /** The round in training, the steps taken in it, and its deadline (ms on the clock of `performance.now`). */
  round = 0;
  step = 0;
  deadline = 0;
  tokensPerS = 0;
  trained = 0;
  lastAnswer = "";
  rounds: RoundFigures[] = [];
  others: Other[] = [];
  /** True while the host starts and ends no rounds. */
  paused = false;
  private readonly snapshot = signal<FederationState | null>(null);
  /** Resolves when the session is over or the page has left. Rejects if the page cannot take part. */
  readonly done: Promise<void>;
  private end!: () => void;
  private giveUp!: (error: Error) => void;
  private readonly invitation: Invitation;
  private readonly socket: ReconnectingSocket;
  private current: Round | null = null;
  private trainer: Trainer | undefined;
  private offer!: Offer;
  private ids!: Ids;
  private kept: Kept = { resume: "" };
  private over = "";
  private place = "";
  private left = false;
  private wake: () => void = () => {};
  private incoming: { message: RoundMessage; data: Uint8Array<ArrayBuffer>; at: number } | null = null;
  private pinged = 0;
  private roundTrip = 0;
  private readonly unlock = new AbortController();

  /** @internal */
  constructor(
    private readonly options: FederateOptions,
    private readonly training: Training,
    private readonly store: Store,
  ) {
    this.invitation = readLink(options.link);
    this.socket = this.connection();
    this.done = new Promise((resolve, reject) => {
      this.end = resolve;
      this.giveUp = reject;
    });
    this.done.catch(() => {}); // callers that await it receive the error
    this.changed();
    void this.run();
  }

  private gone(): boolean {
    return this.left || this.over !== "";
  }

  private get device(): Trainer {
    return must(this.trainer, "trainer");
  }

  // -- from beginning to end --------------------------------------------------------------------------------------

  private async run(): Promise<void> {
    try {
      await this.open();
      this.socket.connect().catch(() => {}); // `follow` shows why
      while (!this.left && !this.over) {
        const round = this.current;
        if (round && !round.update && !round.answered) await this.train(round);
        else await this.woken();
      }
      this.say(this.problem ? "failed" : "over", this.over || "You left the session.");
      this.end();
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.say("failed", this.problem);
      this.giveUp(error instanceof Error ? error : new Error(this.problem));
    } finally {
      this.left = true;
      this.unlock.abort();
      this.socket.close();
      this.training.giveBack(this.trainer);
    }
  }

  /** The state after the latest change; null: nothing has happened yet. */
  get state(): ReadonlySignal<FederationState | null> {
    return this.snapshot;
  }

  private changed(): void {
    const {
      status,
      problem,
      doing,
      terms,
      member,
      name,
      round,
      step,
      deadline,
      tokensPerS,
      trained,
      lastAnswer,
      rounds,
      others,
      paused,
    } = this;
    this.snapshot.value = {
      ...{ status, problem, doing, terms, member, name, round, step, deadline },
      ...{ tokensPerS, trained, lastAnswer, rounds, others, paused },
    };
  }

  private say(status: FederationStatus, doing: string): void {
    this.status = status;
    this.doing = doing;
    this.changed();
  }

  private async get(path: string): Promise<Response> {
    const headers = { Authorization: `Bearer ${this.invitation.token}` };
    const answer = await fetch(new URL(path, this.invitation.base), { headers, cache: "no-store" }).catch(() => null);
    if (!answer) throw new PageError("The host of this session does not answer.");
    if (answer.status === 401) throw new PageError("This invitation is not valid: it is unknown, expired or revoked.");
    if (!answer.ok) throw new PageError(`The host answered ${answer.status}.`);
    return answer;
  }

  private async open(): Promise<void> {
    this.terms = (await (await this.get("v1/session")).json()) as Terms;
    const { terms } = this;
    this.changed();
    const files = (await (await this.get("v1/session/tokenizer")).json()) as Record<string, string>;
    const encoder = new TextEncoder();
    const bpe = readTokenizer(
      Object.fromEntries(Object.entries(files).map(([name, text]) => [name, encoder.encode(text)])),
    );
    if (this.options.text) {
      this.say("opening", "Reading your text");
      const kind = bpe ? `bpe:${bpe.vocab.length}` : "bytes";
      this.ids = (await tokenise({ text: this.options.text, validation: 0, tokenizer: kind, bpe })).train;
    } else {
      this.say("opening", "Fetching the text");
      this.ids = Uint16Array.from(new Uint32Array(await (await this.get("v1/session/text")).arrayBuffer()));
    }
    this.say("opening", "Compiling the shaders");
    ({ trainer: this.trainer, offer: this.offer } = await this.training.lend(terms.digest, terms.settings.seed));
    const { context } = this.offer.recipe;
    if (this.ids.length <= context) {
      throw new PageError(`The text has ${this.ids.length} tokens, too few for a context of ${context}.`);
    }
    await this.remember();
  }

  /** Loads the key and the state of an earlier visit. Each tab locks its own slot, since each tab is a member. */
  private async remember(): Promise<void> {
    for (let slot = 0; ; slot++) {
      const name = `federation ${this.terms!.id} ${slot}`;
      const free = await new Promise<boolean>((resolve) => {
        void navigator.locks.request(`glgpt ${name}`, { ifAvailable: true }, (lock) => {
          resolve(lock !== null);
          return lock && new Promise<void>((release) => this.unlock.signal.addEventListener("abort", () => release()));
        });
      });
      if (!free) continue;
      this.place = name;
      this.kept = (await this.store.kept<Kept>(name).catch(() => undefined)) ?? { resume: "" };
      if (this.kept.state && this.kept.about) this.device.restore(this.kept.state, this.kept.about);
      return;
    }
  }

  private async keep(): Promise<void> {
    await this.store.keep(this.place, this.kept).catch(() => {}); // a later visit is then a new member
  }

  /** Leaves the session. The host reserves the membership for a later visit. */
  leave(): void {
    this.left = true;
    this.socket.close();
    this.wake();
  }

  private woken(): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (this.left || this.over || (this.current && !this.current.update && !this.current.answered)) resolve();
    });
  }

  // -- the socket -------------------------------------------------------------------------------------------------

  private connection(): ReconnectingSocket {
    const socket = new ReconnectingSocket({
      url: new URL("v1/socket", this.invitation.base).href.replace(/^http/, "ws"),
      times: TIMES,
      wanted: () => !this.gone(),
      hello: () => {
        this.incoming = null;
        return JSON.stringify(this.join());
      },
      admit: (data) => this.receive(data) === "welcome",
      receive: (data) => void this.receive(data),
      refusal: ({ code, reason }) =>
        (FATAL as readonly number[]).includes(code) ? new Refused(reason || "The host closed the connection.") : null,
      watch: () => this.ping(),
    });
    this.unlock.signal.addEventListener(
      "abort",
      socket.state.subscribe(({ status, problem }) => untracked(() => this.follow(status, problem))),
    );
    return socket;
  }

  private follow(status: SocketStatus, problem: string): void {
    if (status === "connecting" && problem && !this.gone()) this.say("reconnecting", "Reconnecting");
    if (status !== "refused") return;
    this.problem = problem;
    this.over = `The host refused: ${problem}`;
    this.wake();
  }

  /** Takes a message. Returns its type; "": it is a part of a round's parameters. */
  private receive(data: SocketData): string {
    if (typeof data !== "string") {
      this.frame(new Uint8Array(data));
      return "";
    }
    const said = JSON.parse(data) as Record<string, unknown> & { type: string };
    if (said.type === "welcome") this.socket.heard();
    this.heed(said);
    return said.type;
  }

  private ping(): void {
    if (performance.now() - this.pinged <= PING) return;
    this.pinged = performance.now();
    this.send({ type: "ping", n: 0, ms: this.roundTrip });
  }

  private send(message: object): void {
    this.socket.send(JSON.stringify(message));
  }

  private join() {
    return {
      type: "join",
      version: 1,
      token: this.invitation.token,
      resume: this.kept.resume,
      name: (this.options.name ?? "").slice(0, 40),
      device: this.training.renderer.slice(0, 200),
      kind: "browser",
      digest: this.offer.digest,
      tokenizer: this.terms!.tokenizer,
      own_text: Boolean(this.options.text),
    };
  }

  private heed(said: Record<string, unknown> & { type: string }): void {
    switch (said.type) {
      case "welcome":
        this.kept.resume = said["resume"] as string;
        this.member = said["member"] as number;
        this.name = said["name"] as string;
        void this.keep();
        this.figures(said["rounds"] as RoundFigures[]);
        this.others = said["members"] as Other[];
        this.paused = said["paused"] === true;
        this.say("waiting", "Waiting for a round");
        this.announce();
        break;
      case "round":
        this.incoming = {
          message: said as unknown as RoundMessage,
          data: new Uint8Array(said["bytes"] as number),
          at: 0,
        };
        break;
      case "wrap_up":
        if (this.current?.message.attempt === said["attempt"]) this.current!.wrapUp = true;
        break;
      case "ready":
        this.upload(said["attempt"] as string, said["have"] as number);
        break;
      case "accepted":
      case "rejected":
        this.answered(said);
        break;
      case "figures":
        this.figures(said["rounds"] as RoundFigures[]);
        break;
      case "state":
        this.others = said["members"] as Other[];
        this.paused = said["paused"] === true;
        this.changed();
        break;
      case "pong":
        this.roundTrip = performance.now() - this.pinged;
        break;
      case "closed":
        this.over = `The session is over: ${said["why"] as string}.`;
        this.wake();
    }
  }

  private frame(bytes: Uint8Array): void {
    const { incoming } = this;
    if (!incoming || incoming.at + bytes.length > incoming.data.length) return;
    incoming.data.set(bytes, incoming.at);
    incoming.at += bytes.length;
    if (incoming.at < incoming.data.length) return;
    this.incoming = null;
    const held = this.current;
    if (held?.message.attempt === incoming.message.attempt && !held.answered) return; // already in training
    const { message } = incoming;
    this.deadline = performance.now() + 1000 * message.seconds_left;
    this.current = {
      message,
      parameters: new Float32Array(incoming.data.buffer),
      wrapUp: false,
      update: null,
      answered: false,
    };
    this.wake();
  }

  private announce(): void {
    const { current } = this;
    if (current?.update && !current.answered) this.send(current.update.said);
  }

  private upload(attempt: string, have: number): void {
    const { current } = this;
    if (!current?.update || current.message.attempt !== attempt) return;
    const { bytes } = current.update;
    for (let at = have * FRAME; at < bytes.length; at += FRAME) this.socket.send(bytes.subarray(at, at + FRAME));
  }

  private answered(said: Record<string, unknown>): void {
    const { current } = this;
    if (!current || current.message.attempt !== said["attempt"]) return;
    current.answered = true;
    this.lastAnswer = said["type"] === "accepted" ? "accepted" : `rejected: ${said["why"] as string}`;
    this.say("waiting", "Waiting for the next round");
    this.wake();
  }

  private figures(rounds: RoundFigures[]): void {
    const all = new Map(this.rounds.map((r) => [r.round, r]));
    for (const round of rounds) {
      const merged = { ...all.get(round.round), ...round };
      all.set(round.round, merged);
      this.options.onRound?.(merged);
    }
    this.rounds = [...all.values()].sort((a, b) => a.round - b.round);
    this.changed();
  }

  // -- training ---------------------------------------------------------------------------------------------------

  private async train(round: Round): Promise<void> {
    const { message } = round;
    const { batch, context } = this.offer.recipe;
    if (this.device.gone) await this.rebuild();
    try {
      this.round = message.round;
      this.step = 0;
      this.say("training", `Training round ${message.round}`);
      this.device.setParameters(round.parameters);
      const began = performance.now();
      let told = 0;
      let sum = 0;
      let results = 0;
      const take = (arrived: readonly { loss: number }[]) => {
        for (const { loss } of arrived) sum += loss;
        results += arrived.length;
      };
      const overtaken = () => this.left || this.over !== "" || this.current !== round;
      for (const [i, lr] of message.lr.entries()) {
        const first = shardStarts(message.seed, message.step + i + 1, batch, this.ids.length - context, message.shard);
        take(await this.device.submit(this.ids, first, lr));
        this.step = i + 1;
        this.tokensPerS = (1000 * (i + 1) * batch * context) / (performance.now() - began);
        if (performance.now() - told > PROGRESS_INTERVAL_MS || i + 1 === message.lr.length) {
          told = performance.now();
          const loss = results && Number.isFinite(sum) ? sum / results : null;
          this.send({ type: "progress", step: i + 1, loss, tokens_per_s: this.tokensPerS });
          this.changed();
        }
        await pause(); // messages are received between two steps
        if (overtaken()) return void (await this.device.drain());
        if (round.wrapUp) break;
      }
      take(await this.device.drain());
      const after = await this.device.parameters();
      const loss = sum / results;
      if (!Number.isFinite(loss)) throw new PageError(`Round ${message.round}: the loss is not finite on this device.`);
      const { bytes, scale } = encode(this.terms!.dtype, after, round.parameters);
      const seconds = (performance.now() - began) / 1000;
      const tokens = results * batch * context;
      const said = {
        type: "update",
        round: message.round,
        attempt: message.attempt,
        tokens,
        steps: results,
        loss,
        seconds,
      };
      round.update = { said: { ...said, dtype: this.terms!.dtype, scale, bytes: bytes.length }, bytes };
      this.trained++;
      this.say("sending", "Sending the update");
      this.announce();
      const { config, recipe } = this.offer;
      this.kept.about = {
        config,
        recipe,
        lr: message.lr.at(-1)!,
        seed: this.terms!.settings.seed,
        step: this.device.steps,
      };
      this.kept.state = await this.device.state(this.kept.about.lr);
      await this.keep();
    } catch (error) {
      if (!isLost(error, this.device.device)) throw error; // else the round is restarted on the next context
    }
  }

  /** Creates a new trainer after a lost context, with the saved moments. */
  private async rebuild(): Promise<void> {
    this.say("opening", "Waiting for the graphics context");
    ({ trainer: this.trainer } = await this.training.lend(this.terms!.digest, this.terms!.settings.seed));
    if (this.kept.state && this.kept.about) this.device.restore(this.kept.state, this.kept.about);
  }
}
