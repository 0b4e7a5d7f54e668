// Renders chat templates in a worker, with a limit on time: a template that does not end must not stop the page.

import { PageError, reason } from "../gl/errors";
import { Queue } from "../gl/wait";
import type { Rendered, RenderJob } from "./interpreter";
import TemplateWorker from "./template-worker?worker&inline";

const TIMEOUT_MS = 3000; // maximum ms of a job; usual templates take a few ms
const START_TIMEOUT_MS = 20_000; // maximum ms until the worker is ready: a slow device must load it first
const WORKER = "the worker that renders it";
const BUSY = `${WORKER} did not start within ${START_TIMEOUT_MS / 1000} s. Close other tabs and try again`;
const BLOCKED = `${WORKER} cannot be loaded. Reload the page, whose policy must allow worker-src blob:`;

/** The worker, or a replacement in tests. */
export type RenderWorker = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/**
 * Renders one job at a time. `begin` or the first job starts the worker. After a failed job, the next job starts a new
 * worker.
 */
export class TemplateRenderer {
  private worker: RenderWorker | null = null;
  private ready: Promise<RenderWorker> | null = null;
  private readonly queue = new Queue();
  private closed = () => {}; // ends the wait for an answer

  constructor(private readonly start: () => RenderWorker = () => new TemplateWorker()) {}

  /** Renders the job's template once per set of variables. Rejects with PageError if it fails or takes too long. */
  render(job: RenderJob): Promise<string[]> {
    return this.queue.run(() => this.run(job));
  }

  /** Starts the worker ahead of the first job. If the start fails, the first job starts the worker again. */
  begin(): this {
    void this.started();
    return this;
  }

  /** Ends the worker and its current job. */
  close(): void {
    this.worker?.terminate();
    this.worker = this.ready = null;
    this.closed();
  }

  /** Resolves to the worker when it is ready. */
  private started(): Promise<RenderWorker> {
    if (this.ready) return this.ready;
    const ready = this.opened();
    ready.catch(() => this.ready === ready && this.close()); // the next job tries again
    return (this.ready = ready);
  }

  private async opened(): Promise<RenderWorker> {
    let worker: RenderWorker;
    try {
      worker = this.worker = this.start();
    } catch (error) {
      throw new Error(`${BLOCKED} (${reason(error)})`);
    }
    await this.answer(worker, START_TIMEOUT_MS, BUSY, BLOCKED);
    return worker;
  }

  private async run(job: RenderJob): Promise<string[]> {
    try {
      const worker = await this.started();
      const late = `rendering it took more than ${TIMEOUT_MS / 1000} s`;
      const answer = this.answer<Rendered>(worker, TIMEOUT_MS, late, `${WORKER} ended`);
      worker.postMessage(job);
      const said = await answer;
      if ("texts" in said) return said.texts;
      throw new Error(said.failed.slice(0, 200));
    } catch (error) {
      this.close();
      throw new PageError(`The chat template of this model cannot be used: ${reason(error)}`);
    }
  }

  /** Resolves to the worker's next message. Rejects with `late` after `ms`, and with `broken` if the worker fails. */
  private answer<T>(worker: RenderWorker, ms: number, late: string, broken: string): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const fail = (why: string) => reject(new Error(why));
      const timer = setTimeout(() => fail(late), ms);
      const end = <V>(work: (value: V) => void, value: V) => {
        clearTimeout(timer);
        work(value);
      };
      worker.onmessage = ({ data }: MessageEvent<T>) => end(resolve, data);
      worker.onerror = () => end(fail, broken);
      this.closed = () => end(fail, "its worker was closed");
    });
  }
}
