// The header's switch between models, and the chip that shows a running training on every tab.

import { X } from "lucide";
import { useEffect } from "preact/hooks";
import { learning } from "../stores/learning";
import { engine, models } from "../stores/model";
import { route } from "../stores/route";
import { classes } from "./classes";
import { Icon } from "./icon";
import ui from "./shared.module.css";
import style from "./models.module.css";

/** Selects the model that all tabs show: the page's own, the one in training, or one from files. */
export function ModelSwitch() {
  useEffect(() => learning.watch(), []);
  const { used, switching, fileName } = models;
  const found = learning.shown.value;
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
          <Icon of={X} />
        </button>
      )}
    </div>
  );
}

/** A running training, shown on every tab; a click opens it. */
export function TrainingChip() {
  const found = learning.shown.value;
  if (found?.status !== "running") return null;
  return (
    <button class={style.chip} title="A training is running; click to open it" onClick={() => route.show("train")}>
      <i aria-hidden="true" /> step {found.step} of {found.steps}
      {found.loss !== null && `, loss ${found.loss.toFixed(2)}`}
    </button>
  );
}
