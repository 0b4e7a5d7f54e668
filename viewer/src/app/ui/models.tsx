// The header's switch between models, and the chip that shows a running training on every tab.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Status } from "../../training/session";
import * as state from "../stores/state";
import { throttled } from "./tools";

const FRAME = 250; // ms between two updates of the chip

/** The training that the header shows; null: none. */
const learning = signal<{ step: number; steps: number; loss: number | null; status: Status } | null>(null);

const read = () => {
  const { session } = state.engine().training;
  const last = session?.points.findLast(({ step }) => step > 0);
  learning.value = session && { step: last?.step ?? session.step, steps: session.plan.rates.steps, loss: last?.loss ?? null, status: session.status };
};
const changed = throttled(read, FRAME);

function watch(): () => void {
  const { training } = state.engine();
  const adopt = () => {
    training.session?.listeners.add(changed);
    read();
  };
  training.listeners.add(adopt);
  adopt();
  return () => training.listeners.delete(adopt);
}

/** Selects the model that all tabs show: the page's own, the one in training, or one from files. */
export function ModelSwitch() {
  useEffect(watch, []);
  const { used, switching, fileName } = state;
  const found = learning.value;
  const busy = Boolean(switching.value);
  const name = (text: string, which: typeof used.value, title: string, disabled = false) => (
    <button aria-pressed={used.value === which} disabled={busy || disabled} title={title} onClick={() => void state.use(which)}>
      {text}
    </button>
  );
  return (
    <div class="models" role="group" aria-label="Model">
      {name(state.engine().own.manifest.model, "own", "The model that came with this page")}
      {name(found ? `mine, step ${found.step}` : "mine", "mine", "The model that you train here; it shares its weights with the training")}
      {fileName.value && name(fileName.value, "file", "The model that you opened")}
      <label class={`as-button${busy ? " off" : ""}`} title="A saved .zip, or the files of a run folder; they stay in this browser">
        from a file…
        <input
          type="file"
          multiple
          disabled={busy}
          accept=".zip,.safetensors,.json,.txt"
          onChange={(e) => {
            const files = Array.from(e.currentTarget.files ?? []);
            e.currentTarget.value = "";
            if (files.length) void state.use("file", files);
          }}
        />
      </label>
      <span class="dim" role="status">
        {switching.value || state.refused.value}
      </span>
      {state.refused.value && !switching.value && (
        <button class="quiet" aria-label="Dismiss the message" title="Dismiss" onClick={() => (state.refused.value = "")}>
          ✕
        </button>
      )}
    </div>
  );
}

/** A running training, shown on every tab; a click opens it. */
export function TrainingChip() {
  const found = learning.value;
  if (found?.status !== "running") return null;
  return (
    <button class="chip" title="A training is running; click to open it" onClick={() => state.show("train")}>
      <i aria-hidden="true" /> step {found.step} of {found.steps}
      {found.loss !== null && `, loss ${found.loss.toFixed(2)}`}
    </button>
  );
}
