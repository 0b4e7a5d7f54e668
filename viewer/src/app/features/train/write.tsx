// The Write step: generates text with the trained model, shows the model on the other tabs, and saves or loads models.

import { useSignal } from "@preact/signals";
import { NumberField } from "../../ui/number";
import { models } from "../../stores/model";
import { route } from "../../stores/route";
import { train } from "./store";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

export function WriteStage() {
  return (
    <div class={style.writeStage}>
      <Write />
      <div class={ui.panel}>
        <h2>Inspect the model</h2>
        <LookInside />
        <h2 class={style.next}>Save and load</h2>
        <SaveAndLoad />
      </div>
    </div>
  );
}

function Write() {
  const found = train.shown.value;
  const chosen = useSignal(-1); // index of the chosen sample; -1: the latest
  const samples = found?.samples ?? [];
  const at = chosen.value < 0 ? samples.length - 1 : Math.min(chosen.value, samples.length - 1);
  const shown = samples[at];
  const writing = train.writing.value;
  return (
    <div class={ui.panel} data-part="samples">
      <h2>Generate</h2>
      <label class={ui.prompt}>
        <span>Prompt</span>
        <textarea
          rows={2}
          placeholder="optional"
          value={train.prompt.value}
          onInput={(e) => (train.prompt.value = e.currentTarget.value)}
        />
      </label>
      <div class={classes(ui.fields, style.fields)}>
        <NumberField label="Length" of={train.length} min={1} max={4000} step={1} hint="Number of tokens to generate" />
        <NumberField
          label="Temperature"
          of={train.temperature}
          min={0}
          max={5}
          step="any"
          hint="0 always takes the likeliest token"
        />
      </div>
      <div class={ui.buttons}>
        <button
          class={ui.primary}
          disabled={!found || writing !== null || train.preparing.value !== null}
          onClick={() => void train.write()}
        >
          Generate
        </button>
        {samples.length > 1 && (
          <label class={ui.inline}>
            Text from step
            <select value={chosen.value < 0 ? -1 : at} onChange={(e) => (chosen.value = Number(e.currentTarget.value))}>
              <option value={-1}>latest ({samples.at(-1)!.step})</option>
              {samples.map((s, i) => (
                <option key={i} value={i}>
                  {s.step}
                </option>
              ))}
            </select>
          </label>
        )}
        {!found && <span class={ui.dim}>Start a training first.</span>}
      </div>
      <pre class={ui.sample} tabIndex={0} aria-live="off">
        {shown && writing === null && <b>{shown.prompt}</b>}
        {writing ?? shown?.text ?? "No text yet."}
      </pre>
    </div>
  );
}

function LookInside() {
  const look = async () => {
    await models.use("mine");
    if (models.used.value === "mine") route.show("text");
  };
  return (
    <div class={style.save}>
      <p class={ui.dim}>
        All tabs can show this model with its attention and every activation, while the training continues.
      </p>
      <div class={ui.buttons}>
        <button disabled={!train.session.value || Boolean(models.switching.value)} onClick={() => void look()}>
          Show it on every tab
        </button>
      </div>
    </div>
  );
}

function SaveAndLoad() {
  const found = train.shown.value;
  return (
    <div class={style.save}>
      <div class={ui.buttons}>
        <button disabled={!found || train.preparing.value !== null} onClick={() => void train.download()}>
          Download
        </button>
        <label class={classes(ui.asButton, style.asButton)}>
          Load…
          <input
            type="file"
            multiple
            accept=".zip,.safetensors,.json,.txt"
            onChange={(e) => {
              void train.take(e.currentTarget.files ?? []);
              e.currentTarget.value = "";
            }}
          />
        </label>
      </div>
      <p class={ui.dim}>
        The download is a .zip with a model folder for <code>glgpt generate --model DIR</code> and{" "}
        <code>transformers</code>. Load… opens this .zip, or the files of its folder.
      </p>
    </div>
  );
}
