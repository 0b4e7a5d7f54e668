// What the strip shows of a page with a server: which blocks are where, and what a token's way takes.

import { signal } from "@preact/signals";
import type { Model } from "../../engine/model";
import type { Crossing, Split } from "../../engine/split";
import { moved } from "../state";

export const status = signal<Split["status"]>("idle");
export const problem = signal("");
/** The way of the last token, and the sums of all. */
export const last = signal<Crossing | null>(null);
export const total = signal({ tokens: 0, sent: 0, received: 0, reconnects: 0, guessed: 0, accepted: 0 });
/** Whether the page guesses ahead; null: where the line takes longer than both sides. */
export const speculate = signal<boolean | null>(null);
/** What a token took on its way, in the mean of the latest: milliseconds, and bytes both ways. */
export interface Way {
  here: number;
  wire: number;
  there: number;
  bytes: number;
}
const NONE: Way = { here: 0, wire: 0, there: 0, bytes: 0 };
export const mean = signal<Way>(NONE);
/** How many blocks run in the page, and the ways of the numbers that were tried. */
export const here = signal(0);
export const tried = signal<ReadonlyMap<number, Way>>(new Map());

const LATEST = 32; // tokens that the means are over
let latest: Crossing[] = [];
let watched: Split | null = null;

/** Moves the cut to behind so many blocks. */
export function move(model: Model, blocks: number): void {
  model.here = blocks;
  here.value = model.here;
  moved.value++;
  latest = [];
  mean.value = tried.value.get(blocks) ?? NONE;
  last.value = null;
  if (model.here < model.manifest.config.n_layer) model.split!.connect().catch(() => {}); // the strip says why
}

/** Guesses ahead from now on, or not, or where it pays. */
export function guess(model: Model, how: boolean | null): void {
  model.split!.speculate = speculate.value = how;
}

export function watch(model: Model): void {
  const split = model.split!;
  if (watched === split) return;
  watched = split;
  here.value = model.here;
  split.speculate = speculate.value;
  const tell = () => {
    status.value = split.status;
    problem.value = split.status === "connected" ? "" : split.problem;
    total.value = { ...total.value, reconnects: split.reconnects };
  };
  split.onStatus = tell;
  split.onCrossing = (crossing) => {
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
    if (crossing.rows > 1 || crossing.blocks !== here.value) return; // a prompt's chunk; a token from before the cut was moved
    latest.push(crossing);
    if (latest.length > LATEST) latest.shift();
    const of = (value: (c: Crossing) => number) => latest.reduce((sum, c) => sum + value(c), 0) / latest.length;
    const [own, wire, there] = [of((c) => c.localMs), of((c) => c.networkMs), of((c) => c.remoteMs)];
    mean.value = { here: own, wire, there, bytes: of((c) => c.sent + c.received) };
    tried.value = new Map(tried.value).set(here.value, mean.value);
  };
  tell();
}
