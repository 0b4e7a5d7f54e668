// Yielding to the browser without the 4 ms that nested timers cost; a queue of work.

export const TASK = 15; // ms of work after which the page gets a frame

const channel = new MessageChannel();
const waiting: (() => void)[] = [];
channel.port1.onmessage = () => waiting.shift()?.();

/** Resolves in a later task, as soon as possible. */
export function pause(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(0);
  });
}

/** A function that lets the page have a frame, if `TASK` ms of work were done since it last did. */
export function yielder(): () => Promise<void> {
  let since = performance.now();
  return async () => {
    if (performance.now() - since <= TASK) return;
    await pause();
    since = performance.now();
  };
}

export function sleep(ms: number, hidden = false): Promise<void> {
  if (hidden) return tick(ms);
  return new Promise((resolve) => setTimeout(resolve, ms));
}

let clock: Worker | null = null;
const asleep: (() => void)[] = [];

/** A worker's timer: browsers slow down those of a page that nobody sees, to one a second and less. */
function tick(ms: number): Promise<void> {
  if (!clock) {
    const code = "onmessage = ({ data }) => setTimeout(() => postMessage(0), data)";
    clock = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    clock.onmessage = () => asleep.shift()?.();
  }
  clock.postMessage(ms);
  return new Promise((resolve) => asleep.push(resolve));
}

/** Work done one after another, in the order in which it was asked for. */
export class Queue {
  /** Resolves when all that has been asked for is done, whatever came of it. */
  idle: Promise<unknown> = Promise.resolve();
  private waiting = 0;
  private since = performance.now();

  run<T>(work: () => Promise<T>): Promise<T> {
    this.waiting++;
    const mine = this.idle.then(work).finally(() => {
      this.waiting--;
      this.since = performance.now();
    });
    this.idle = mine.catch(() => {});
    return mine;
  }

  /** Milliseconds since it has had nothing to do; -1 while it has. */
  get restingMs(): number {
    return this.waiting ? -1 : performance.now() - this.since;
  }
}
