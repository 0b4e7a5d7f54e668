// The start screen of a page that was exported without weights. It opens a model's files, shows the memory that the
// model needs, and lists the models in this browser's storage.

import { useEffect, useRef } from "preact/hooks";
import { canKeep } from "../../../runtime/engine/kept-models";
import { fileName } from "../../../runtime/engine/model-link";
import type { Openable } from "../../../runtime/engine/opened-model";
import { megabytes } from "../../../runtime/io/fetch-stream";
import type { Addition } from "../../stores/route";
import { Pairs } from "../../ui/pairs";
import { countInWords, thousands, useDrop } from "../../ui/tools";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import { opening } from "./store";
import style from "./style.module.css";

function Open() {
  const { found, link, problem, doing } = opening;
  return (
    <section class={style.open} data-view="open" aria-label="Open a model">
      {found.value ? <Found model={found.value} /> : link.value ? <Link url={link.value} /> : <Choose />}
      {doing.value && <Doing />}
      {problem.value && (
        <p class={style.problem} role="alert">
          <Problem text={problem.value} />
        </p>
      )}
      {!found.value && <Kept />}
      {!found.value && <Shapes />}
    </section>
  );
}

/** Shows the area to drop files on, with a button that opens the browser's file dialog. */
function Choose() {
  const over = useDrop((files) => void opening.open(files));
  const input = useRef<HTMLInputElement>(null);
  return (
    <div class={classes(style.drop, over.value && style.over)}>
      <svg viewBox="0 0 33 33" aria-hidden="true" class={style.tiles}>
        <path d="M0 0h10v10H0zM22 0h10v10H22zM11 11h10v10H11zM0 22h10v10H0zM22 22h10v10H22z" />
        <path class={style.pale} d="M11 0h10v10H11zM0 11h10v10H0zM22 11h10v10H22zM11 22h10v10H11z" />
      </svg>
      <h2>Open a model file</h2>
      <p>
        Drop a <b>.gguf</b> file here, or <b>config.json</b>, <b>tokenizer.json</b> and the <b>.safetensors</b> files of
        a Hugging Face folder together.
      </p>
      <button class={ui.primary} disabled={opening.doing.value !== ""} onClick={() => input.current?.click()}>
        Choose a file
      </button>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Model files"
        onChange={(event) => {
          const { files } = event.currentTarget;
          void opening.open(Array.from(files ?? []));
          event.currentTarget.value = "";
        }}
      />
      <p class={ui.dim}>The file stays on this device: the page reads it here and sends it nowhere.</p>
    </div>
  );
}

/** Shows the address of a model, which the link to this page contains, and a button that fetches the model. */
function Link({ url }: { url: URL }) {
  return (
    <div class={ui.panel}>
      <h2>Fetch {fileName(url)}?</h2>
      <p>
        The link that opened this page names a model on <b>{url.host}</b>. If you fetch the model, that server learns
        this device's IP address. Nothing has been fetched so far.
      </p>
      <p class={style.address}>{url.href}</p>
      <div class={ui.buttons}>
        <button class={ui.primary} disabled={opening.doing.value !== ""} onClick={() => void opening.fetch()}>
          Fetch the model
        </button>
        {opening.fetching ? (
          <button onClick={() => opening.cancel()}>Stop</button>
        ) : (
          <button onClick={() => opening.reset()}>Open a file instead</button>
        )}
      </div>
    </div>
  );
}

/** Shows an opened model: its size, the memory that it needs, and a button that loads the weights. */
function Found({ model }: { model: Openable }) {
  const { file, weights, all } = model.bytes;
  const button = useRef<HTMLButtonElement>(null);
  const idle = opening.doing.value === "";
  useEffect(() => {
    if (idle) button.current?.focus(); // during work, the button is disabled and cannot have the focus
  }, [idle]);
  const mix = ["file", "any"].includes(model.mix) ? "" : ` in the mix ${model.mix}`;
  const rows: [string, string][] = [
    ["Model", `${model.shape}, ${countInWords(model.parameters)} parameters`],
    [
      "File",
      model.decoded
        ? `${megabytes(file)}; its quantised weights are decoded to 32 bits`
        : `${megabytes(file)}; weights${mix} are used as stored, without conversion`,
    ],
    [
      "Needs",
      `${megabytes(all)} of graphics memory: ${megabytes(weights)} for weights, ${megabytes(all - weights)} for ` +
        "caches and working textures",
    ],
    ["Available", available(all)],
    ["Context", `${thousands(model.positions)} of the model's ${thousands(model.context)} tokens`],
    ["Tokenizer", model.tokenizer ? "in the file" : "none that this page supports: prompts are lists of token ids"],
  ];
  if (model.smaller) rows.push(["Less memory", `takes a program for this file: ${model.smaller}`]);
  return (
    <div class={ui.panel}>
      <h2>{model.title}</h2>
      <div class={style.facts}>
        <Pairs of={rows} />
      </div>
      {canKeep() && !opening.isKept.value && (
        <label class={style.keep}>
          <input
            type="checkbox"
            checked={opening.keep.value}
            onChange={(event) => (opening.keep.value = event.currentTarget.checked)}
          />{" "}
          Keep a copy in this browser for the next visit ({megabytes(file)}; you can remove it on this page)
        </label>
      )}
      <div class={ui.buttons}>
        <button
          ref={button}
          class={ui.primary}
          disabled={opening.doing.value !== ""}
          onClick={() => void opening.load()}
        >
          Load the model
        </button>
        <button disabled={opening.doing.value !== ""} onClick={() => opening.reset()}>
          Open another file
        </button>
      </div>
    </div>
  );
}

/** Returns a text about the memory that the browser reports, with a warning if `needed` bytes may not fit. */
function available(needed: number): string {
  const { deviceMemory } = navigator as { deviceMemory?: number };
  if (deviceMemory === undefined) return "this browser does not report the device's memory";
  const tight = needed > deviceMemory * 2 ** 30 * 0.5 ? "; the model may not fit" : "";
  return (
    `${deviceMemory} GB${deviceMemory >= 8 ? " or more" : ""} of memory; ` +
    `browsers do not report graphics memory${tight}`
  );
}

function Doing() {
  const share = opening.share.value;
  return (
    <div class={style.doing} role="status">
      <p>{opening.doing.value}…</p>
      <progress {...(share === null ? {} : { value: share })} max={1} aria-label={opening.doing.value} />
    </div>
  );
}

/** Shows an error message. If the message ends with a `glgpt export` command, the command is in a monospaced font. */
function Problem({ text }: { text: string }) {
  const at = text.indexOf("glgpt export ");
  if (at < 0) return <>{text}</>;
  return (
    <>
      {text.slice(0, at)}
      <code>{text.slice(at)}</code>
    </>
  );
}

/** Lists the models in this browser's storage. */
function Kept() {
  const kept = opening.kept.value;
  if (!kept.length) return null;
  return (
    <div class={ui.panel}>
      <h2>Kept in this browser</h2>
      <ul class={style.kept}>
        {kept.map((model) => (
          <li key={model.name}>
            <span class={style.name}>{model.name}</span> <span class={ui.dim}>{megabytes(model.bytes)}</span>
            <span class={ui.buttons}>
              <button onClick={() => void opening.openKept(model)} aria-label={`Open ${model.name}`}>
                Open
              </button>
              <button
                class={ui.quiet}
                onClick={() => void opening.removeKept(model)}
                aria-label={`Remove ${model.name}`}
              >
                Remove
              </button>
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Lists the shapes (architectures with their sizes) that the page has programs for. */
function Shapes() {
  const shapes = opening.shapes.value;
  if (!shapes.length) return null;
  return (
    <div class={style.shapes}>
      <h3>This page runs these models and their fine-tuned variants</h3>
      <ul>
        {shapes.map((name) => (
          <li key={name}>{name}</li>
        ))}
      </ul>
    </div>
  );
}

export const addition: Addition = { choice: Open };
