// Renders chat templates in a worker, with a limit on time: a template that does not end must not stop the page.

import { PageError } from "../gl/errors";
import { Queue } from "../gl/wait";
import type { Rendered, RenderJob } from "./interpreter";
import TemplateWorker from "./template-worker?worker&inline";

const TIMEOUT_MS = 3000; // of a job; usual templates take a few ms
const START_TIMEOUT_MS = 60_000; // of a worker, which a slow device must load first

/** The worker, or what tests put in its place. */
export type RenderWorker = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/** Renders one job at a time. Its worker starts with the first, and again after one that failed. */
export class TemplateRenderer {
  private worker: RenderWorker | null = null;
  private readonly queue = new Queue();
  private closed = () => {}; // ends the wait for a worker that starts

  constructor(private readonly start: () => RenderWorker = () => new TemplateWorker()) {}

  /** Renders a template with each of `variables`. Throws PageError if it fails, or takes too much time. */
  render(job: RenderJob): Promise<string[]> {
    return this.queue.run(() => this.run(job));
  }

  /** Starts the worker before the first job, which then need not wait for it. */
  begin(): this {
    this.queue.run(() => this.started()).catch(() => {}); // the first job reports it
    return this;
  }

  /** Resolves when a new worker is ready, or does not start. */
  private async started(): Promise<void> {
    const worker = (this.worker = this.start());
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ready = await new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), START_TIMEOUT_MS);
      worker.onmessage = () => resolve(true);
      worker.onerror = this.closed = () => resolve(false);
    });
    clearTimeout(timer);
    if (!ready) this.close();
  }

  close(): void {
    this.worker?.terminate();
    this.worker = null;
    this.closed();
  }

  private async run(job: RenderJob): Promise<string[]> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const said = await new Promise<Rendered>((resolve) => {
      const limit = (ms: number, what: string) => {
        clearTimeout(timer);
        timer = setTimeout(() => resolve({ failed: `${what} took more than ${ms / 1000} s` }), ms);
      };
      const begin = () => limit(TIMEOUT_MS, "rendering it");
      if (this.worker) begin();
      else limit(START_TIMEOUT_MS, "starting the worker that renders it");
      const worker = (this.worker ??= this.start());
      worker.onmessage = ({ data }: MessageEvent<Rendered | "ready">) => (data === "ready" ? begin() : resolve(data));
      worker.onerror = () => resolve({ failed: "the worker that renders it ended" });
      worker.postMessage(job);
    });
    clearTimeout(timer);
    if ("texts" in said) return said.texts;
    this.close();
    throw new PageError(`The chat template of this model cannot be used: ${said.failed.slice(0, 200)}`);
  }
}
