// Yields to the browser without the 4 ms that nested timers cost, and queues work.

export const TASK = 15; // ms of work after which the page may draw a frame

const channel = new MessageChannel();
const waiting: (() => void)[] = [];
channel.port1.onmessage = () => waiting.shift()?.();

/** Resolves in the next possible task. */
export function pause(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(0);
  });
}

/** Returns a function that lets the page draw a frame if it last did so more than `TASK` ms ago. */
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

/** Waits with a worker's timer: browsers slow down the timers of a hidden page to one a second or less. */
function tick(ms: number): Promise<void> {
  if (!clock) {
    const code = "onmessage = ({ data }) => setTimeout(() => postMessage(0), data)";
    clock = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    clock.onmessage = () => asleep.shift()?.();
  }
  clock.postMessage(ms);
  return new Promise((resolve) => asleep.push(resolve));
}

/** Runs work one piece at a time, in the order of the calls. */
export class Queue {
  /** Resolves when all queued work has finished or failed. */
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

  /** Milliseconds since the queue became idle; -1 while it has work. */
  get restingMs(): number {
    return this.waiting ? -1 : performance.now() - this.since;
  }
}
