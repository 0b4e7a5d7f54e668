// The engine and the model in use: loading, failures, and switching to another model.

import { computed, effect, signal, untracked } from "@preact/signals";
import type { Glgpt, Progress, Used } from "../../api";
import { PageError, reason } from "../../runtime/gl/errors";

const UNEXPECTED = "This is an unexpected error: reload the page, and export the model again if that does not help.";
const WINDOW_MS = 3000; // ms over which the speed of a download is measured
const STALE_MS = 1500; // ms without a byte after which the speed counts as 0

class ModelStore {
  readonly phase = signal<"choosing" | "loading" | "ready" | "failed">("loading");
  readonly failure = signal("");
  readonly progress = signal<Progress & { speed: number }>({
    done: 0,
    total: 0,
    cached: 0,
    compiled: 0,
    shaders: 0,
    speed: 0,
  });
  /** The model in use; `fileName` is the name of a model opened from files. */
  readonly used = signal<Used>("own");
  readonly fileName = signal("");
  /** Progress of a switch to another model, and the error message if it failed. */
  readonly switching = computed(() => (this.preparing.value ? this.compilingOr("Preparing the model…") : ""));
  readonly refused = signal("");
  /** True while the graphics context is lost. */
  readonly lost = computed(() => {
    const { value } = this.phase;
    return (value === "loading" || value === "ready") && this.engine.contextLost.value;
  });
  /** The object `globalThis.glgpt`. Its `model` is read from a signal, so components follow a change of the model. */
  engine!: Glgpt;
  private files: readonly File[] = []; // the files of the last model that was opened
  private readonly preparing = signal(false);
  private stop: () => Promise<void> = () => Promise.resolve();

  /** Follows the loading of a model; `stop` stops a running generation. */
  open(engine: Glgpt, stop: () => Promise<void>): void {
    this.engine = engine;
    this.stop = stop;
    const measured = measuringSpeed((progress) => (this.progress.value = progress));
    effect(() => {
      const { value } = engine.progress;
      untracked(() => measured(value));
    });
  }

  /** Shows why the model cannot be used. */
  fail(error: unknown): void {
    this.failure.value = error instanceof PageError ? error.message : `${reason(error)}. ${UNEXPECTED}`;
    this.phase.value = "failed";
  }

  /** The model in use once it is ready, else null. */
  get ready() {
    return this.phase.value === "ready" ? this.engine.model : null;
  }

  /** Switches every tab to another model. */
  async use(which: Used, chosen: readonly File[] = []): Promise<void> {
    if (this.switching.value || (which === this.used.value && !chosen.length)) return;
    const files = chosen.length ? chosen : this.files;
    this.refused.value = "";
    this.preparing.value = true;
    try {
      const { training } = this.engine;
      if (which === "mine" && !training.session && !(await training.restore())) {
        throw new Error("No model has been trained here yet. Choose a text and press Start.");
      }
      await this.stop();
      await this.engine.use(which, files);
      if (which === "file") this.files = files;
    } catch (error) {
      this.refused.value = error instanceof Error ? error.message : String(error);
    }
    this.preparing.value = false;
  }

  /** Returns the progress while shaders compile, else the text `otherwise`. */
  compilingOr(otherwise: string): string {
    const { compiled, shaders } = this.engine.own.device.compiling.value;
    return compiled < shaders ? `Compiling shaders ${compiled} of ${shaders}` : otherwise;
  }
}

/** Returns a progress callback that also measures the download speed over the last `WINDOW_MS`. */
function measuringSpeed(show: (progress: Progress & { speed: number }) => void): (p: Progress) => void {
  const heard: { at: number; fetched: number }[] = [];
  let timer = 0;
  let latest: Progress;
  return (p) => {
    latest = p;
    const [at, fetched] = [performance.now(), p.done - p.cached];
    if (heard.at(-1)?.fetched !== fetched) {
      heard.push({ at, fetched });
      clearTimeout(timer);
      timer = setTimeout(() => show({ ...latest, speed: 0 }), STALE_MS);
    }
    while (heard.length > 2 && at - heard[0]!.at > WINDOW_MS) heard.shift();
    const [first, last] = [heard[0]!, heard.at(-1)!];
    const flowing = p.done < p.total && last.at > first.at && at - last.at < STALE_MS;
    show({ ...p, speed: flowing ? (1000 * (last.fetched - first.fetched)) / (last.at - first.at) : 0 });
  };
}

export const models = new ModelStore();
export const engine = (): Glgpt => models.engine;
