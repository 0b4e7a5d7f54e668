// Renders chat templates in a worker, with a limit on time: a template that does not end must not stop the page.

import { PageError } from "../gl/errors";
import { Queue } from "../gl/wait";
import type { Rendered, RenderJob } from "./interpreter";
import TemplateWorker from "./template-worker?worker&inline";

const TIMEOUT_MS = 3000; // of a job; usual templates take a few ms

/** The worker, or what tests put in its place. */
export type RenderWorker = Pick<Worker, "postMessage" | "terminate" | "onmessage" | "onerror">;

/** Renders one job at a time. Its worker starts with the first, and again after one that failed. */
export class TemplateRenderer {
  private worker: RenderWorker | null = null;
  private readonly queue = new Queue();

  constructor(private readonly start: () => RenderWorker = () => new TemplateWorker()) {}

  /** Renders a template with each of `variables`. Throws PageError if it fails, or takes too much time. */
  render(job: RenderJob): Promise<string[]> {
    return this.queue.run(() => this.run(job));
  }

  close(): void {
    this.worker?.terminate();
    this.worker = null;
  }

  private async run(job: RenderJob): Promise<string[]> {
    const worker = (this.worker ??= this.start());
    let timer: ReturnType<typeof setTimeout> | undefined;
    const said = await new Promise<Rendered>((resolve) => {
      worker.onmessage = ({ data }: MessageEvent<Rendered>) => resolve(data);
      worker.onerror = () => resolve({ failed: "the worker that renders it ended" });
      timer = setTimeout(() => resolve({ failed: `rendering it took more than ${TIMEOUT_MS / 1000} s` }), TIMEOUT_MS);
      worker.postMessage(job);
    });
    clearTimeout(timer);
    if ("texts" in said) return said.texts;
    this.close();
    throw new PageError(`The chat template of this model cannot be used: ${said.failed.slice(0, 200)}`);
  }
}
