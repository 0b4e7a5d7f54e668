// What the strip shows of a split page: which blocks are where, and what a token's way takes.

import { signal } from "@preact/signals";
import type { Crossing, Split } from "../../engine/split";

export const status = signal<Split["status"]>("connecting");
export const problem = signal("");
/** The way of the last token, and the sums of all. */
export const last = signal<Crossing | null>(null);
export const total = signal({ tokens: 0, sent: 0, received: 0, reconnects: 0 });
/** Means over the latest tokens, in milliseconds. */
export const mean = signal({ here: 0, wire: 0, there: 0 });

const LATEST = 32; // tokens that the means are over
const latest: Crossing[] = [];
let watched: Split | null = null;

export function watch(split: Split): void {
  if (watched === split) return;
  watched = split;
  const tell = () => {
    status.value = split.status;
    problem.value = split.status === "connected" ? "" : split.problem;
    total.value = { ...total.value, reconnects: split.reconnects };
  };
  split.onStatus = tell;
  split.onCrossing = (crossing) => {
    const { tokens, sent, received } = total.value;
    last.value = crossing;
    total.value = {
      ...total.value,
      tokens: tokens + crossing.rows,
      sent: sent + crossing.sent,
      received: received + crossing.received,
    };
    if (crossing.rows > 1) return; // a prompt's chunk is no token's way
    latest.push(crossing);
    if (latest.length > LATEST) latest.shift();
    const of = (key: "hereMs" | "wireMs" | "thereMs") => latest.reduce((sum, c) => sum + c[key], 0) / latest.length;
    mean.value = { here: of("hereMs"), wire: of("wireMs"), there: of("thereMs") };
  };
  tell();
}
