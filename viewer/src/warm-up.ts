// Warms up a model, at once or when the device is idle: compiles the shaders that loading skipped, and measures kernels
// (variants of the matrix product).

import { canRemember } from "./runtime/engine/probe";
import type { Recording } from "./runtime/engine/manifest";
import type { Model } from "./runtime/engine/model";
import { ContextLost } from "./runtime/gl/device";
import { sleep, type Queue } from "./runtime/gl/wait";

const REST = 2000; // ms without a call after which a page warms up
const ATTEMPTS = 20; // maximum attempts to warm up; an attempt stops measuring when the API is called

export class WarmUp {
  constructor(
    private readonly model: Model,
    private readonly queue: Queue,
    /** True if something other than a call uses the device. */
    private readonly busy: () => boolean,
    /** Returns the names of files that later calls may need with this recording. */
    private readonly later: (recording: Recording) => Promise<string[]>,
  ) {}

  /**
   * Compiles the remaining shaders once the device is idle. Also measures kernels, if the browser can store the results
   * for the next visit. Then, if the device is still idle, tests whether later visits can draw to more targets at once.
   * Resolves when all this is done, or after `ATTEMPTS` attempts.
   */
  async atRest(): Promise<void> {
    const { model, queue } = this;
    const done = () => model.complete && (model.kernels.probe || !canRemember());
    for (let attempts = 0; attempts < ATTEMPTS && !done(); attempts++) {
      do await sleep(REST);
      while (!this.rests(REST));
      try {
        await this.compileAll();
        if (canRemember() && this.rests(0)) await this.measure(() => this.rests(0));
      } catch (error) {
        if (!(error instanceof ContextLost) && !model.stale) throw error;
      }
    }
    if (!done() || !this.rests(0)) return;
    await queue.run(() => {
      model.device.tryMoreTargets();
      return Promise.resolve();
    });
  }

  /** Compiles the remaining shaders and measures the kernels now. */
  async now(): Promise<void> {
    await this.compileAll();
    await this.measure();
  }

  private async compileAll(): Promise<void> {
    await this.model.compileLater();
    await this.queue.run(() => this.model.useAll());
  }

  private measure(going?: () => boolean): Promise<boolean> {
    return this.model.measure(this.later, going);
  }

  /** True if the page is visible and the device has been idle for this many milliseconds. */
  private rests(ms: number): boolean {
    return this.queue.restingMs >= ms && !this.busy() && document.visibilityState === "visible";
  }
}
