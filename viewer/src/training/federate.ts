// Makes the page a member of a federation, in which several devices train one model. The page joins with an invitation.
// In each round, the page receives parameters from the host, trains them for some steps and sends back their change.

import { computed, type ReadonlySignal } from "@preact/signals-core";
import type { Offer } from "../runtime/engine/manifest";
import type {
  AnswerMessage,
  GatewayMessage,
  Join,
  MemberRow,
  RoundFigures,
  Terms,
} from "../runtime/generated/federation-messages";
import { MAX_DEVICE, MAX_NAME } from "../runtime/generated/protocols";
import { must, PageError } from "../runtime/gl/errors";
import type { SocketStatus } from "../runtime/io/socket";
import type { Ids } from "./batches";
import { GatewaySocket } from "./gateway-socket";
import { Invitation } from "./invitation";
import { Membership } from "./membership";
import { observe } from "./observed";
import { trainRound, type Round } from "./round";
import type { Store } from "./store";
import { tokenise } from "./tokenise";
import { isLost, type Trainer } from "./trainer";
import type { Training } from "./training";

export interface FederateOptions {
  /** The invitation: a link from the federation's host, as `glgpt federate serve` prints it. */
  link: string;
  /** The user's own text to train on. It does not leave this browser. */
  text?: string;
  name?: string;
  onRound?: (round: RoundFigures) => void;
}

export type FederationStatus = "opening" | "waiting" | "training" | "sending" | "reconnecting" | "over" | "failed";

/** The properties of a membership that a page shows; each is observable. */
const SHOWN = [
  "status",
  "problem",
  "doing",
  "terms",
  "member",
  "name",
  "round",
  "step",
  "deadline",
  "tokensPerS",
  "trained",
  "lastAnswer",
  "rounds",
  "others",
  "paused",
] as const;

/** The state of a membership that a page shows. */
export type FederationState = Readonly<Pick<Federation, (typeof SHOWN)[number]>>;

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
  rounds: readonly RoundFigures[] = [];
  others: readonly MemberRow[] = [];
  /** True while the host has paused the session: no round starts or ends. */
  paused = false;
  /** Resolves when the session is over or the page has left. Rejects if the page cannot take part or continue. */
  readonly done: Promise<void>;
  private end!: () => void;
  private giveUp!: (error: Error) => void;
  private readonly invitation: Invitation;
  private readonly socket: GatewaySocket;
  private readonly membership: Membership;
  private current: Round | null = null;
  private trainer: Trainer | undefined;
  private offer!: Offer;
  private ids!: Ids;
  private over = "";
  private left = false;
  private wake: () => void = () => {};
  private readonly shown = computed(
    () => Object.fromEntries(SHOWN.map((name) => [name, this[name]])) as unknown as FederationState,
  );

  /** @internal */
  constructor(
    private readonly options: FederateOptions,
    private readonly training: Training,
    store: Store,
  ) {
    this.invitation = new Invitation(options.link);
    this.membership = new Membership(store);
    observe(this, SHOWN);
    this.socket = new GatewaySocket(this.invitation.socket, {
      wanted: () => !this.gone(),
      join: () => this.join(),
      heed: (message) => this.heed(message),
      start: (message, parameters) => {
        const held = this.current;
        if (held?.message.attempt === message.attempt && !held.answered) return; // the page already has this attempt
        this.deadline = performance.now() + 1000 * message.seconds_left;
        this.current = { message, parameters, wrapUp: false, update: null, answered: false };
        this.wake();
      },
      follow: (status, problem) => this.follow(status, problem),
    });
    this.done = new Promise((resolve, reject) => {
      this.end = resolve;
      this.giveUp = reject;
    });
    this.done.catch(() => {}); // no unhandled error is reported; callers that await `done` receive the error
    void this.run();
  }

  /** The state after the latest change. */
  get state(): ReadonlySignal<FederationState> {
    return this.shown;
  }

  /** Leaves the session. The host reserves the membership for a later visit. */
  leave(): void {
    this.left = true;
    this.socket.leave();
    this.wake();
  }

  private gone(): boolean {
    return this.left || this.over !== "";
  }

  private get device(): Trainer {
    return must(this.trainer, "trainer");
  }

  private async run(): Promise<void> {
    try {
      await this.open();
      this.socket.connect();
      while (!this.gone()) {
        const round = this.current;
        if (round && !round.update && !round.answered) await this.train(round);
        else await this.woken();
      }
      if (this.problem) throw new PageError(this.problem);
      this.say("over", this.over || "You left the session.");
      this.end();
    } catch (error) {
      this.problem = error instanceof Error ? error.message : String(error);
      this.say("failed", this.problem);
      this.giveUp(error instanceof Error ? error : new Error(this.problem));
    } finally {
      this.left = true;
      this.socket.close();
      this.membership.close();
      this.training.giveBack(this.trainer);
    }
  }

  private say(status: FederationStatus, doing: string): void {
    this.status = status;
    this.doing = doing;
  }

  private async open(): Promise<void> {
    const terms = (this.terms = await this.invitation.terms());
    const bpe = await this.invitation.tokenizer();
    if (this.options.text) {
      this.say("opening", "Reading your text");
      const kind = bpe ? `bpe:${bpe.vocab.length}` : "bytes";
      this.ids = (await tokenise({ text: this.options.text, validation: 0, tokenizer: kind, bpe })).train;
    } else {
      this.say("opening", "Fetching the text");
      this.ids = await this.invitation.text();
    }
    this.say("opening", "Compiling the shaders");
    ({ trainer: this.trainer, offer: this.offer } = await this.training.lend(terms.digest, terms.settings.seed));
    const { context } = this.offer.recipe;
    if (this.ids.length <= context) {
      throw new PageError(
        `The text has ${this.ids.length} tokens, too few for a context of ${context}. Join with a longer text.`,
      );
    }
    await this.membership.open(terms.id);
    this.restore();
  }

  private restore(): void {
    const { state, about } = this.membership.kept;
    if (state && about) this.device.restore(state, about);
  }

  private woken(): Promise<void> {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (this.gone() || (this.current && !this.current.update && !this.current.answered)) resolve();
    });
  }

  // -- messages ---------------------------------------------------------------------------------------------------

  private follow(status: SocketStatus, problem: string): void {
    if (status === "connecting" && problem && !this.gone()) this.say("reconnecting", "Reconnecting");
    if (status !== "refused") return;
    const why = problem.replace(/\.$/, "");
    this.over = this.problem = `The host refused this device: ${why}. Ask the host why, then join again.`;
    this.wake();
  }

  private join(): Join {
    return {
      type: "join",
      version: 1,
      token: this.invitation.token,
      resume: this.membership.kept.resume,
      name: (this.options.name ?? "").slice(0, MAX_NAME),
      device: this.training.renderer.slice(0, MAX_DEVICE),
      kind: "browser",
      digest: this.offer.digest,
      tokenizer: this.terms!.tokenizer,
      own_text: Boolean(this.options.text),
    };
  }

  private heed(said: GatewayMessage): void {
    switch (said.type) {
      case "welcome":
        this.membership.kept.resume = said.resume;
        this.member = said.member;
        this.name = said.name;
        void this.membership.keep();
        this.figures(said.rounds);
        this.others = said.members;
        this.paused = said.paused;
        this.showRound();
        this.announce();
        break;
      case "wrap_up":
        if (this.current?.message.attempt === said.attempt) this.current.wrapUp = true;
        break;
      case "ready":
        if (this.current?.update && this.current.message.attempt === said.attempt)
          this.socket.upload(this.current.update.bytes, said.have);
        break;
      case "accepted":
      case "rejected":
        this.answered(said);
        break;
      case "figures":
        this.figures(said.rounds);
        break;
      case "state":
        this.others = said.members;
        this.paused = said.paused;
        break;
      case "closed":
        this.over = `The session is over: ${said.why}.`;
        this.wake();
    }
  }

  private announce(): void {
    const { current } = this;
    if (current?.update && !current.answered) this.socket.send(current.update.said);
  }

  private answered(said: AnswerMessage): void {
    const { current } = this;
    const { attempt, why = "no reason was given" } = said;
    if (attempt !== undefined && attempt !== current?.message.attempt) return;
    this.lastAnswer = said.type === "accepted" ? "accepted" : `rejected: ${why}`;
    if (!current || (attempt === undefined && !current.update)) return; // the rejected message was not an update
    current.answered = true;
    this.showRound();
    this.wake();
  }

  /** Shows what this device does in the current round. */
  private showRound(): void {
    const { current } = this;
    if (!current) this.say("waiting", "Waiting for a round");
    else if (current.answered) this.say("waiting", "Waiting for the next round");
    else if (current.update) this.say("sending", "Sending the update");
    else this.say("training", `Training round ${current.message.round}`);
  }

  private figures(rounds: readonly RoundFigures[]): void {
    const all = new Map(this.rounds.map((r) => [r.round, r]));
    for (const round of rounds) {
      const merged = { ...all.get(round.round), ...round };
      all.set(round.round, merged);
      this.options.onRound?.(merged);
    }
    this.rounds = [...all.values()].sort((a, b) => a.round - b.round);
  }

  // -- training ---------------------------------------------------------------------------------------------------

  private async train(round: Round): Promise<void> {
    const { message } = round;
    const terms = must(this.terms, "terms");
    if (this.device.gone) await this.rebuild(terms);
    try {
      this.round = message.round;
      this.step = 0;
      this.showRound();
      const update = await trainRound(round, {
        ...{ trainer: this.device, offer: this.offer, ids: this.ids, terms },
        overtaken: () => this.gone() || this.current !== round,
        onStep: (progress, due) => {
          this.step = progress.step;
          this.tokensPerS = progress.tokens_per_s;
          if (due) this.socket.send(progress);
        },
      });
      if (!update) return;
      round.update = update;
      this.trained++;
      this.showRound();
      this.announce();
      const { config, recipe } = this.offer;
      const lr = message.lr.at(-1)!;
      const { kept } = this.membership;
      kept.about = { config, recipe, lr, seed: terms.settings.seed, step: this.device.steps };
      kept.state = await this.device.state(lr);
      await this.membership.keep();
    } catch (error) {
      if (!isLost(error, this.device.device)) throw error; // after a lost context, the round is restarted
    }
  }

  /** Creates a new trainer after a lost context, and restores its saved state. */
  private async rebuild(terms: Terms): Promise<void> {
    this.say("opening", "Waiting for the graphics context");
    ({ trainer: this.trainer } = await this.training.lend(terms.digest, terms.settings.seed));
    this.restore();
  }
}
