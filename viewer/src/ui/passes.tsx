// The program as a list a person can read, and its passes one at a time.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { sleep } from "../gl/wait";
import type { Model } from "../model";
import type { Entry, View } from "../program";
import * as state from "./state";
import { drawing, useDevice } from "./tools";

export function PassesView() {
  const { model } = state.engine();
  const entries = Object.keys(model.programs.generate.entries).filter((n) => !n.startsWith("attention_"));
  const name = useSignal("decode");
  const at = useSignal(0);
  const playing = useSignal(false);
  const entry = model.programs.generate.entries[name.value]!;
  const pass = entry.passes[at.value] ?? entry.passes[0]!;
  const canvas = useRef<HTMLCanvasElement>(null);
  const list = useRef<HTMLOListElement>(null);
  const busy = state.running.value;
  useDevice(
    async (m) => {
      if (canvas.current && !busy) await playTo(m, entry, at.value, canvas.current);
    },
    [name.value, at.value, busy],
  );
  useEffect(() => {
    if (!playing.value) return;
    const timer = setInterval(() => {
      at.value = (at.value + 1) % entry.passes.length;
    }, 350);
    return () => clearInterval(timer);
  }, [playing.value, name.value]);
  useEffect(() => list.current?.querySelector(".on")?.scrollIntoView({ block: "nearest" }), [at.value, name.value]);
  const move = (by: number) => (
    (playing.value = false),
    (at.value = Math.min(entry.passes.length - 1, Math.max(0, at.value + by)))
  );
  const to = (texture: string) => {
    const writer = entry.passes.findLastIndex((p, i) => i < at.value && p.outputs.some(([t]) => t === texture));
    if (writer >= 0) move(writer - at.value);
  };
  return (
    <section class="passes" aria-label="Passes">
      <div class="panel names">
        <h2>Passes</h2>
        <label class="inline">
          Entry
          <select value={name.value} onChange={(e) => ((name.value = e.currentTarget.value), (at.value = 0))}>
            {entries.map((n) => (
              <option key={n} value={n}>
                {n} ({model.programs.generate.entries[n]!.passes.length})
              </option>
            ))}
          </select>
        </label>
        <ol ref={list} start={0}>
          {entry.passes.map((p, i) => (
            <li key={i}>
              <button
                class={i === at.value ? "on" : ""}
                aria-current={i === at.value ? "step" : undefined}
                onClick={() => move(i - at.value)}
              >
                <span>{i}</span> <code>{p.label}</code> <small>{p.shader.split("-")[0]}</small>
              </button>
            </li>
          ))}
        </ol>
      </div>
      <div class="panel">
        <h2>
          <code>{pass.label}</code>
        </h2>
        <div class="buttons">
          <button onClick={() => move(-1)} disabled={at.value === 0}>
            Back
          </button>
          <button class="primary" onClick={() => (playing.value = !playing.value)}>
            {playing.value ? "Pause" : "Play"}
          </button>
          <button onClick={() => move(1)} disabled={at.value === entry.passes.length - 1}>
            Step
          </button>
          <span class="dim">
            pass {at.value} of {entry.passes.length}
          </span>
        </div>
        <div class="plane">
          <canvas ref={canvas} role="img" aria-label={`What ${pass.label} has written`} />
        </div>
        <dl class="facts">
          <dt>Reads</dt>
          <dd>
            {pass.inputs.map(([sampler, texture]) => (
              <button
                key={sampler}
                class="link"
                title={`${sampler}: go to the pass that wrote it`}
                onClick={() => to(texture)}
              >
                {texture}
              </button>
            ))}
          </dd>
          <dt>Writes</dt>
          <dd>{pass.outputs.map(([texture, layer]) => `${texture}[${layer}]`).join(", ")}</dd>
          <dt>Size</dt>
          <dd>
            {pass.viewport.join(" x ")} fragments{pass.row ? ` from row ${pass.row}` : ""}
            {pass.flops ? `, ${(pass.flops / 1e6).toFixed(1)} MFLOP` : ""}
            {pass.nbytes ? `, ${(pass.nbytes / 2 ** 20).toFixed(2)} MiB of weights` : ""}
          </dd>
        </dl>
        <details open>
          <summary>
            Shader <code>{pass.shader}</code>
          </summary>
          <Source text={model.programs.generate.shaders[pass.shader] ?? ""} />
        </details>
      </div>
    </section>
  );
}

const WORDS =
  /(\/\/[^\n]*)|(^\s*#[a-z]+)|\b(void|int|float|uint|vec[234]|[iub]vec[234]|const|uniform|layout|in|out|if|else|for|return|precision|highp|u?sampler2DArray)\b|\b(\d[\w.]*)\b/gm;

/** GLSL with its comments, directives, words and numbers marked; the prelude is folded away. */
function Source({ text }: { text: string }) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(WORDS)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const kind = match[1] ? "comment" : match[2] ? "directive" : match[3] ? "word" : "number";
    parts.push(<span class={kind}>{match[0]}</span>);
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return (
    <pre class="source" tabIndex={0}>
      {parts}
    </pre>
  );
}

/** Plays an entry's passes 0..last for the last token of the text, and draws what the last one wrote. */
async function playTo(model: Model, entry: Entry, last: number, canvas: HTMLCanvasElement): Promise<void> {
  const ids = state.ids.value.slice(0, model.manifest.config.n_positions);
  if (!ids.length) return;
  const { painter } = await drawing(model);
  await model.player.prepare(entry.name);
  model.rewind(ids, entry.name);
  model.player.play(entry.name, 0, last + 1);
  const pass = entry.passes[last]!;
  const [texture] = pass.outputs[0]!;
  const spec = model.player.spec(texture);
  const view: View = model.programs.generate.views[texture] ?? {
    texture,
    rows: spec.height * spec.layers,
    cols: spec.width * (spec.format === "uint" ? 8 : 4),
    tiles: [spec.layers, spec.format === "uint" ? 2 : 1],
    dtype: spec.format === "uint" ? "f16" : "f32",
  };
  const rows = pass.row ? Math.min(view.rows, ids.length) : view.rows;
  const values = await model.player.read(texture);
  let scale = 0;
  if (values instanceof Float32Array)
    for (const v of values) if (Math.abs(v) < 1e29) scale = Math.max(scale, Math.abs(v));
  const width = Math.min(1024, view.cols * Math.max(1, Math.floor(640 / view.cols)));
  const height = Math.min(640, rows * Math.max(1, Math.floor(160 / rows)));
  painter.matrix(canvas, model.player.texture(texture), view, {
    rows,
    memory: false,
    scale: scale / 2 || 1,
    width,
    height,
  });
  await sleep(0);
}
