// The header's switch between models, and the chip that shows a running training on every tab.

import { effect, signal, untracked } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Session, Status } from "../../training/session";
import { engine, models } from "../stores/model";
import { route } from "../stores/route";
import { throttled } from "./tools";
import { classes } from "./classes";
import ui from "./shared.module.css";
import style from "./models.module.css";

const FRAME_MS = 250; // ms between two updates of the chip

/** The training that the header shows; null: none. */
const learning = signal<{ step: number; steps: number; loss: number | null; status: Status } | null>(null);

const read = () => {
  const found = engine().training.session?.state.peek() ?? null;
  const last = found?.points.findLast(({ step }) => step > 0);
  learning.value = found && {
    step: last?.step ?? found.step,
    steps: found.plan.rates.steps,
    loss: last?.loss ?? null,
    status: found.status,
  };
};
const changed = throttled(read, FRAME_MS);

/** Follows the training: another session at once, its changes at most every `FRAME_MS`. */
function watch(): () => void {
  let shown: Session | null = null;
  return effect(() => {
    const { session } = engine().training;
    if (session?.state.value && session === shown) changed();
    else untracked(read);
    shown = session;
  });
}

/** Selects the model that all tabs show: the page's own, the one in training, or one from files. */
export function ModelSwitch() {
  useEffect(watch, []);
  const { used, switching, fileName } = models;
  const found = learning.value;
  const busy = Boolean(switching.value);
  const name = (text: string, which: typeof used.value, title: string, disabled = false) => (
    <button
      aria-pressed={used.value === which}
      disabled={busy || disabled}
      title={title}
      onClick={() => void models.use(which)}
    >
      {text}
    </button>
  );
  return (
    <div class={style.models} role="group" aria-label="Model">
      {name(engine().own.manifest.model, "own", "The model that came with this page")}
      {name(
        found ? `mine, step ${found.step}` : "mine",
        "mine",
        "The model that you train here; it shares its weights with the training",
      )}
      {fileName.value && name(fileName.value, "file", "The model that you opened")}
      <label
        class={classes(ui.asButton, style.asButton)}
        title="A saved .zip, or the files of a run folder; they stay in this browser"
      >
        from a file…
        <input
          type="file"
          multiple
          disabled={busy}
          accept=".zip,.safetensors,.json,.txt"
          onChange={(e) => {
            const files = Array.from(e.currentTarget.files ?? []);
            e.currentTarget.value = "";
            if (files.length) void models.use("file", files);
          }}
        />
      </label>
      <span class={ui.dim} role="status">
        {switching.value || models.refused.value}
      </span>
      {models.refused.value && !switching.value && (
        <button
          class={ui.quiet}
          aria-label="Dismiss the message"
          title="Dismiss"
          onClick={() => (models.refused.value = "")}
        >
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
    <button class={style.chip} title="A training is running; click to open it" onClick={() => route.show("train")}>
      <i aria-hidden="true" /> step {found.step} of {found.steps}
      {found.loss !== null && `, loss ${found.loss.toFixed(2)}`}
    </button>
  );
}
