// The header's switch between models, and the chip that shows a running training on every tab.

import { useEffect } from "preact/hooks";
import type { Used } from "../../../api";
import { generation } from "../../stores/generation";
import { engine, models } from "../../stores/model";
import { route, type Addition } from "../../stores/route";
import { classes } from "../../ui/classes";
import { Dismiss } from "../../ui/dismiss";
import ui from "../../ui/shared.module.css";
import { learning } from "./store";
import style from "./style.module.css";

/** Selects a model. Opens the Train view if the visitor selects the model in training and there is none yet. */
async function choose(which: Used): Promise<void> {
  await models.use(which);
  if (which === "mine" && !engine().training.session) route.show("train");
}

/** Shows buttons that select the model of all tabs: the page's own, the one in training, or one from files. */
function ModelSwitch() {
  useEffect(() => learning.watch(), []);
  const { used, switching, fileName } = models;
  const found = learning.shown.value;
  const busy = Boolean(switching.value);
  const name = (text: string, which: Used, title: string, disabled = false) => (
    <button
      aria-pressed={used.value === which}
      disabled={busy || disabled}
      title={title}
      onClick={() => void choose(which)}
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
      {models.refused.value && !switching.value && <Dismiss message={models.refused} />}
    </div>
  );
}

/** Shows a running training on every tab; a click opens the Train view. */
function TrainingChip() {
  const found = learning.shown.value;
  if (found?.status !== "running") return null;
  return (
    <button class={style.chip} title="A training is running; click to open it" onClick={() => route.show("train")}>
      <i aria-hidden="true" /> step {found.step} of {found.steps}
      {found.loss !== null && `, loss ${found.loss.toFixed(2)}`}
    </button>
  );
}

/** Shows the chip and, on a page that can train, the switch. Reserves the switch's space while the model loads. */
function Corner() {
  const { phase } = models;
  const trains = generation.manifest.value?.training;
  return (
    <>
      <TrainingChip />
      {trains && phase.value === "ready" && <ModelSwitch />}
      {trains && phase.value === "loading" && <i class={style.place} />}
    </>
  );
}

export const addition: Addition = { corner: Corner };
