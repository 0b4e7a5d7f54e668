// The training that the header shows.

import { signal } from "@preact/signals";
import type { Status } from "../../../training/session";
import { engine } from "../../stores/model";
import { follow } from "../../stores/throttled";

const FRAME_MS = 250; // ms between two updates

class LearningStore {
  /** Null: no training. */
  readonly shown = signal<{ step: number; steps: number; loss: number | null; status: Status } | null>(null);

  /**
   * Updates `shown`: at once for another session, and at most every `FRAME_MS` ms for changes of the same session.
   * Returns a function that stops the updates.
   */
  watch(): () => void {
    return follow(this.shown, () => this.read(), FRAME_MS);
  }

  private read() {
    const { session } = engine().training;
    const found = session?.state.value ?? null;
    const last = found?.points.findLast(({ step }) => step > 0);
    const value = found && {
      step: last?.step ?? found.step,
      steps: found.plan.rates.steps,
      loss: last?.loss ?? null,
      status: found.status,
    };
    return { source: session, value };
  }
}

export const learning = new LearningStore();
