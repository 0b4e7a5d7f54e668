// Yields to the browser without the 4 ms delay of nested timers, and queues work.

export const TASK = 15; // ms of work after which the page may draw a frame

const channel = new MessageChannel();
const paused: (() => void)[] = []; // in the order of the messages
channel.port1.onmessage = () => paused.shift()?.();

/** Resolves in the next possible task. */
export function pause(): Promise<void> {
  return new Promise((resolve) => {
    paused.push(resolve);
    channel.port2.postMessage(0);
  });
}

/** Returns a function that pauses, so that the page can draw a frame, if its last pause was more than `TASK` ms ago. */
export function yielder(): () => Promise<void> {
  let since = performance.now();
  return async () => {
    if (performance.now() - since <= TASK) return;
    await pause();
    since = performance.now();
  };
}

/** Resolves after `ms` milliseconds. `hidden`: the page is hidden, so a timer in a worker is used. */
export function sleep(ms: number, hidden = false): Promise<void> {
  if (hidden) return clock.sleep(ms);
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Settles as `work` does. If `signal` aborts first, settles as the result of `instead`, and the work continues. */
export async function unlessAborted<T>(
  work: Promise<T>,
  signal: AbortSignal | undefined,
  instead: () => T | Promise<T>,
): Promise<T> {
  if (!signal) return work;
  let stop = () => {};
  const stopped = new Promise<T>((resolve) => (stop = () => resolve(instead())));
  if (signal.aborted) stop();
  signal.addEventListener("abort", stop);
  // a caller may pass one signal to many calls, so each call must remove its listener
  return Promise.race([work, stopped]).finally(() => signal.removeEventListener("abort", stop));
}

/** A timer in a worker: in a hidden page, browsers let the page's own timers fire at most once a second. */
class WorkerClock {
  private worker: Worker | null = null;
  private readonly sleeping = new Map<number, () => void>(); // by the number of the call
  private calls = 0;

  private get started(): Worker {
    if (this.worker) return this.worker;
    const code = "onmessage = ({ data: [call, ms] }) => setTimeout(() => postMessage(call), ms)";
    this.worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    this.worker.onmessage = ({ data: call }: MessageEvent<number>) => {
      this.sleeping.get(call)?.();
      this.sleeping.delete(call);
    };
    return this.worker;
  }

  sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const call = this.calls++;
      this.sleeping.set(call, resolve);
      this.started.postMessage([call, ms]);
    });
  }
}

const clock = new WorkerClock();

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
