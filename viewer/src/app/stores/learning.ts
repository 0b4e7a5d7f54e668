// The training that the header shows.

import { effect, signal, untracked } from "@preact/signals";
import type { Session, Status } from "../../training/session";
import { engine } from "./model";
import { throttled } from "./throttled";

const FRAME_MS = 250; // ms between two updates

class LearningStore {
  /** Null: no training. */
  readonly shown = signal<{ step: number; steps: number; loss: number | null; status: Status } | null>(null);

  /** Follows the training: another session at once, its changes at most every `FRAME_MS`. Returns how to stop. */
  watch(): () => void {
    let shown: Session | null = null;
    return effect(() => {
      const { session } = engine().training;
      if (session?.state.value && session === shown) this.changed();
      else untracked(() => this.read());
      shown = session;
    });
  }

  private read(): void {
    const found = engine().training.session?.state.peek() ?? null;
    const last = found?.points.findLast(({ step }) => step > 0);
    this.shown.value = found && {
      step: last?.step ?? found.step,
      steps: found.plan.rates.steps,
      loss: last?.loss ?? null,
      status: found.status,
    };
  }

  private readonly changed = throttled(() => this.read(), FRAME_MS);
}

export const learning = new LearningStore();
