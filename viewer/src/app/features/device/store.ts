// The comparison of the model's results with the desktop's.

import { computed, signal } from "@preact/signals";
import type { Model } from "../../../runtime/engine/model";
import type { Parity } from "../../../runtime/engine/parity";
import { engine } from "../../stores/model";

class DeviceStore {
  readonly comparing = signal(false);
  /** Why the last comparison failed; "" if it did not fail. */
  readonly problem = signal("");
  private readonly compared = signal<{ model: Model; parity: Parity } | null>(null);
  /** The last comparison of the model in use; null: none yet. */
  readonly parity = computed(() => (this.compared.value?.model === engine().model ? this.compared.value.parity : null));

  async compare(): Promise<void> {
    const { model } = engine();
    this.comparing.value = true;
    this.problem.value = "";
    try {
      this.compared.value = { model, parity: await engine().parity() };
    } catch (error) {
      this.problem.value = error instanceof Error ? error.message : String(error);
    }
    this.comparing.value = false;
  }
}

export const device = new DeviceStore();
