// State of the split strip: which blocks run where, and the time and bytes of each token.

import { effect, signal, untracked } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import type { Crossing, Split, SplitStatus } from "../../../runtime/engine/split";

export const status = signal<SplitStatus>("idle");
export const problem = signal("");
/** The last token's round trip, and totals over all tokens. */
export const last = signal<Crossing | null>(null);
export const total = signal({ tokens: 0, sent: 0, received: 0, reconnects: 0, guessed: 0, accepted: 0 });
/** True if the page guesses ahead; null: only while the network takes longer than both sides together. */
export const speculate = signal<boolean | null>(null);
/** Means over the latest tokens: milliseconds in the page, on the network and on the server, and bytes both ways. */
export interface Way {
  here: number;
  wire: number;
  there: number;
  bytes: number;
}
const NONE: Way = { here: 0, wire: 0, there: 0, bytes: 0 };
export const mean = signal<Way>(NONE);
/** The number of blocks that run in the page, and the means for each number that was tried. */
export const here = signal(0);
export const tried = signal<ReadonlyMap<number, Way>>(new Map());

const LATEST = 32; // tokens that the means cover
let latest: Crossing[] = [];
let watched: Split | null = null;

/** Moves the split point, so that this many blocks run in the page. */
export function move(model: Model, blocks: number): void {
  model.placement.here = blocks;
  here.value = model.placement.here;
  latest = [];
  mean.value = tried.value.get(blocks) ?? NONE;
  last.value = null;
  if (model.placement.here < model.manifest.config.n_layer) model.split!.connect().catch(() => {}); // the strip shows the error
}

/** Switches guessing ahead on or off; null: on while it saves time. */
export function guess(model: Model, how: boolean | null): void {
  model.split!.speculate = speculate.value = how;
}

/** Follows the model's connection from its first call on. */
export function watch(model: Model): void {
  const split = model.split!;
  if (watched === split) return;
  watched = split;
  here.value = model.placement.here;
  split.speculate = speculate.value;
  effect(() => {
    status.value = split.status;
    problem.value = split.status === "connected" ? "" : split.problem;
    total.value = { ...total.peek(), reconnects: split.reconnects };
  });
  split.crossing.subscribe((crossing) => {
    if (crossing) untracked(() => count(split, crossing));
  });
}

/** Adds a token's cost to the totals and the means. */
function count(split: Split, crossing: Crossing): void {
  const { tokens, sent, received } = total.value;
  last.value = crossing.sent ? crossing : null;
  total.value = {
    ...total.value,
    tokens: tokens + crossing.rows,
    sent: sent + crossing.sent,
    received: received + crossing.received,
    guessed: split.guessed,
    accepted: split.accepted,
  };
  if (crossing.rows > 1 || crossing.blocks !== here.value) return; // a chunk of a prompt, or a token from before the split point moved
  latest.push(crossing);
  if (latest.length > LATEST) latest.shift();
  const of = (value: (c: Crossing) => number) => latest.reduce((sum, c) => sum + value(c), 0) / latest.length;
  const [own, wire, there] = [of((c) => c.localMs), of((c) => c.networkMs), of((c) => c.remoteMs)];
  mean.value = { here: own, wire, there, bytes: of((c) => c.sent + c.received) };
  tried.value = new Map(tried.value).set(here.value, mean.value);
}
