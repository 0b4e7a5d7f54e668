// The start screen of a page without weights: a place to drop a model's files, what the file needs, and kept models.

import { useEffect, useRef } from "preact/hooks";
import { canKeep } from "../../../runtime/engine/kept-models";
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

/** The area to drop files on, which is also a button that opens the browser's file dialog. */
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

/** A question about the link of the address. Nothing is fetched before the visitor agrees. */
function Link({ url }: { url: URL }) {
  const name = decodeURIComponent(url.pathname.split("/").at(-1) ?? "");
  return (
    <div class={ui.panel}>
      <h2>Fetch {name}?</h2>
      <p>
        The link to this page asks for a model from <b>{url.host}</b>. That server then learns this device's address.
        Nothing was fetched so far.
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

/** The size of a model and its memory, and the button that loads it. */
function Found({ model }: { model: Openable }) {
  const { file, weights, all } = model.bytes;
  const button = useRef<HTMLButtonElement>(null);
  const idle = opening.doing.value === "";
  useEffect(() => {
    if (idle) button.current?.focus(); // before, it is disabled
  }, [idle]);
  const mix = model.mix === "file" ? "its own mix of types" : `the mix ${model.mix}`;
  const rows: [string, string][] = [
    ["Model", `${model.shape}, ${countInWords(model.parameters)} parameters`],
    ["File", `${megabytes(file)}, weights of ${mix}, used as stored`],
    [
      "Needs",
      `${megabytes(all)} of graphics memory: ${megabytes(weights)} weights, ${megabytes(all - weights)} caches ` +
        "and working textures",
    ],
    ["Available", available(all)],
    ["Context", `${thousands(model.positions)} tokens of the model's ${thousands(model.context)}`],
    ["Tokenizer", model.tokenizer ? "in the file" : "none that this page supports: prompts are lists of token ids"],
  ];
  return (
    <div class={ui.panel}>
      <h2>{model.title}</h2>
      <div class={style.facts}>
        <Pairs of={rows} />
      </div>
      {canKeep() && (
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

/** Returns what this device says of its memory. */
function available(needed: number): string {
  const { deviceMemory } = navigator as { deviceMemory?: number };
  if (deviceMemory === undefined) return "this browser does not say how much memory the device has";
  const tight = needed > deviceMemory * 2 ** 30 * 0.5 ? "; the model may not fit" : "";
  return (
    `${deviceMemory} GB of memory${deviceMemory >= 8 ? " or more" : ""}; ` +
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

/** An error message, with its command in a monospaced font. */
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

/** The models in this browser's storage. */
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

/** The shapes that the page has programs for. */
function Shapes() {
  const shapes = opening.shapes.value;
  if (!shapes.length) return null;
  return (
    <div class={style.shapes}>
      <h3>This page runs models of these shapes, and their fine-tuned variants</h3>
      <ul>
        {shapes.map((name) => (
          <li key={name}>{name}</li>
        ))}
      </ul>
    </div>
  );
}

export const addition: Addition = { choice: Open };
