// Several continuations of the prompt, generated in a batch. The main text does not change.

import { batch, computed, signal } from "@preact/signals";
import type { Continuation } from "../../api";
import { reason } from "../../runtime/gl/errors";
import { generation } from "./generation";
import { textMeter } from "./meter";
import { engine, models } from "./model";
import { settings } from "./settings";

class ContinuationStore {
  /** The continuations; null: none are requested. */
  readonly texts = signal<readonly Continuation[] | null>(null);
  /** The total speed of all continuations, in tokens per second. */
  readonly rate = signal(0);
  /** A status or error message. */
  readonly note = signal("");
  /** The number of continuations; 0 if the model in its current state can only write one text at a time. */
  readonly atOnce = computed(() => models.ready?.batch.texts ?? 0);

  private readonly meter = textMeter();
  private readonly restore = signal<() => void>(() => {}); // restores the prompt and the settings of the continuations

  async write(): Promise<void> {
    await generation.stop();
    batch(() => {
      this.texts.value = [];
      this.restore.value = settings.saved();
      this.rate.value = 0;
      this.note.value = "Preparing…";
    });
    this.meter.rest();
    await generation.run((signal) =>
      this.stream(signal).catch((error: unknown) => void (this.note.value = reason(error))),
    );
  }

  private async stream(signal: AbortSignal): Promise<void> {
    let [begun, frame] = [0, 0]; // `frame`: the animation frame requested for the next update; 0: none
    let texts: readonly Continuation[] = [];
    const show = () => {
      frame = 0;
      this.texts.value = texts.map((text) => ({ ...text }));
    };
    try {
      texts = await engine().continuations({
        ids: settings.promptIds(),
        tokens: settings.tokens.value,
        ...settings.sampling(),
        signal,
        onCompiled: (compiled, shaders) => (this.note.value = `Compiling shaders ${compiled} of ${shaders}`),
        onTexts: (written) => {
          texts = written;
          if (!begun) [begun, this.note.value] = [performance.now(), "Writing…"];
          if (!this.meter.due() || frame) return;
          frame = requestAnimationFrame(show);
        },
      });
    } finally {
      cancelAnimationFrame(frame); // a pending frame would replace the texts of a later request
      show();
    }
    // the rate leaves out each text's first token, which the prefill computes
    const after = texts.reduce((sum, { ids }) => sum + Math.max(0, ids.length - 1), 0);
    this.rate.value = after ? (1000 * after) / (performance.now() - begun) : 0;
    this.note.value = signal.aborted ? "Stopped." : "";
  }

  /** Makes a continuation the main text: generates it again with its seed, with alternatives and probabilities. */
  async read(seed: number): Promise<void> {
    batch(() => {
      this.restore.value();
      settings.seed.value = seed;
    });
    await generation.write();
  }

  /** Forgets the continuations of the previous model. */
  reset(): void {
    this.texts.value = null;
  }

  /** Removes the continuations and frees their memory on the device. */
  close(): void {
    this.reset();
    void engine().borrow((model) => {
      model.batch.close();
      return Promise.resolve();
    });
  }
}

export const continuations = new ContinuationStore();
