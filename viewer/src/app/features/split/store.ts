// State of the split strip: the split point, and the time and bytes of each token. The split point is the number of the
// model's blocks that run in this page; the other blocks run on a server.

import { effect, signal, untracked } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import type { Crossing, Split, SplitStatus } from "../../../runtime/engine/split";

/** Means over the latest tokens: ms in the page, on the network and on the server, and bytes in both directions. */
export interface Way {
  here: number;
  wire: number;
  there: number;
  bytes: number;
}
const NONE: Way = { here: 0, wire: 0, there: 0, bytes: 0 };

const LATEST = 32; // tokens that the means cover

class SplitStore {
  readonly status = signal<SplitStatus>("idle");
  readonly problem = signal("");
  /** The latest round trip to the server (null: the latest tokens needed none), and totals over all tokens. */
  readonly last = signal<Crossing | null>(null);
  readonly total = signal({ tokens: 0, sent: 0, received: 0, reconnects: 0, guessed: 0, accepted: 0 });
  /**
   * True if the page guesses tokens ahead; null: only while latency is high, which means that the network takes longer
   * than page and server together, and longer than a minimum (`highLatency` in runtime/engine/split.ts).
   */
  readonly speculate = signal<boolean | null>(null);
  readonly mean = signal<Way>(NONE);
  /** The means for each tried split point, by the number of blocks in the page. */
  readonly tried = signal<ReadonlyMap<number, Way>>(new Map());
  private latest: Crossing[] = [];
  private watched: Split | null = null;
  private unwatch = () => {};

  /** Moves the split point, so that this many blocks run in the page. */
  move(model: Model, blocks: number): void {
    model.placement.here = blocks;
    this.latest = [];
    this.mean.value = this.tried.value.get(blocks) ?? NONE;
    this.last.value = null;
    // the strip shows the error
    if (model.placement.here < model.manifest.config.n_layer) model.split!.connect().catch(() => {});
  }

  /** Switches guessing ahead on or off; null: on only while the network is slow (see `speculate`). */
  guess(model: Model, how: boolean | null): void {
    model.split!.speculate = this.speculate.value = how;
  }

  /** Follows the model's connection. Another call for the same connection does nothing. */
  watch(model: Model): void {
    const split = model.split!;
    if (this.watched === split) return;
    this.unwatch();
    this.watched = split;
    split.speculate = this.speculate.value;
    const stops = [
      effect(() => {
        this.status.value = split.status;
        this.problem.value = split.status === "connected" ? "" : split.problem;
        this.total.value = { ...this.total.peek(), reconnects: split.reconnects };
      }),
      split.crossing.subscribe((crossing) => {
        if (crossing) untracked(() => this.count(model, crossing));
      }),
    ];
    this.unwatch = () => stops.forEach((stop) => stop());
  }

  /** Adds the bytes of a token, or of a chunk of a prompt, to the totals. Updates the means, for a token only. */
  private count(model: Model, crossing: Crossing): void {
    const { guessed, accepted } = model.split!;
    const { here } = model.placement;
    const { tokens, sent, received } = this.total.value;
    this.last.value = crossing.sent ? crossing : null;
    this.total.value = {
      ...this.total.value,
      tokens: tokens + crossing.rows,
      sent: sent + crossing.sent,
      received: received + crossing.received,
      guessed,
      accepted,
    };
    // the means leave out chunks of a prompt, and tokens of the previous split point
    if (crossing.rows > 1 || crossing.blocks !== here) return;
    this.latest.push(crossing);
    if (this.latest.length > LATEST) this.latest.shift();
    const { latest } = this;
    const of = (value: (c: Crossing) => number) => latest.reduce((sum, c) => sum + value(c), 0) / latest.length;
    const [own, wire, there] = [of((c) => c.localMs), of((c) => c.networkMs), of((c) => c.remoteMs)];
    this.mean.value = { here: own, wire, there, bytes: of((c) => c.sent + c.received) };
    this.tried.value = new Map(this.tried.value).set(here, this.mean.value);
  }
}

export const split = new SplitStore();
