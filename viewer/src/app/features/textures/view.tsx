// The Textures view: lists the textures of a block by name (activations, weights, and persistent state such as caches)
// and shows the values of the selected one.

import { Grid3x3 } from "lucide";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Chunk } from "../../../runtime/engine/chunks";
import { plan, sizes, writeIds } from "../../../runtime/engine/chunks";
import { memoryView, writtenBy } from "../../../runtime/engine/field";
import { FORMATS } from "../../../runtime/engine/formats";
import type { Model } from "../../../runtime/engine/model";
import { must } from "../../../runtime/gl/errors";
import type { View } from "../../../runtime/gl/program";
import { axesOf } from "../../ui/axis";
import { Plane, type Subject } from "../../ui/plane";
import { passes } from "../passes/store";
import { textures } from "./store";
import { generation } from "../../stores/generation";
import { interventions } from "../../stores/interventions";
import { engine } from "../../stores/model";
import type { View as Tab } from "../../stores/route";
import { classes } from "../../ui/classes";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const OUTSIDE = "Embedding and output"; // textures that belong to no block

/** The place of an activation's values (`view`) after the model has processed `chunk`, one of the text's `chunks`. */
interface Found {
  view: View;
  chunk: Chunk;
  chunks: Chunk[];
}

function TexturesView() {
  const { model } = engine();
  const chosen = textures.texture;
  useEffect(() => {
    return () => textures.hold(null);
  }, []);
  const memory = useSignal(false);
  const part = useSignal(-1); // index of the selected chunk of the text; -1: the longest chunk
  const found = useSignal<Found | null>(null);
  const name = chosen.value;
  const isActivation = activationsOf(model).includes(name);
  const spec = isActivation ? null : (model.programs.generate.textures[name] ?? null);
  const entry = model.programs.generate.entries[passes.entry.value];
  const busy = generation.running.value;
  const texts = generation.readIds.value;
  const play = async (m: Model): Promise<Subject | null> => {
    if (generation.running.value || !texts.length) return null;
    if (!isActivation) return playState(m, texts, name, memory.value);
    if (isRemoteActivation(m, name)) {
      const came = (await m.activations.fetch(texts, [name])).get(name)!;
      textures.hold(came);
      const whole = { start: 0, valid: texts.length, size: texts.length };
      found.value = { view: came.view, chunk: whole, chunks: [whole] };
      return { player: came.player, view: came.view, rows: came.view.rows };
    }
    const last = await playActivation(m, texts, name, part.value);
    const { player } = m.activations.capture;
    const inner = player.spec(last.view.texture);
    const view = memory.value ? memoryView(inner, last.view.dtype) : last.view;
    return { player, view, rows: memory.value ? view.rows : rowsOf(m, name, last) };
  };
  const local = isActivation && !isRemoteActivation(model, name);
  const f = !isActivation ? null : local && texts.length ? locate(model, texts, name, part.value) : found.value;
  const whole = f?.view ?? model.programs.generate.views[name];
  const size = f && local && whole ? { rows: rowsOf(model, name, f), cols: whole.cols } : whole;
  const axes = memory.value || !size ? {} : axesOf(model, name, size, f?.chunk.start ?? 0);
  return (
    <section class={style.textures} data-view="textures" aria-label="Textures">
      <Names />
      <div class={ui.panel}>
        <div class={classes(ui.heading, style.head)}>
          <h2>
            <code>{name}</code>
          </h2>
          <span class={ui.tag}>{isActivation ? "activation" : (spec?.role ?? "unknown")}</span>
          <div class={ui.buttons}>
            {!isRemoteActivation(model, name) && (
              <label class={ui.inline}>
                <input
                  type="checkbox"
                  checked={memory.value}
                  onChange={(e) => (memory.value = e.currentTarget.checked)}
                />
                memory layout
              </label>
            )}
            {f && f.chunks.length > 1 && (
              <label class={ui.inline}>
                Tokens
                <select
                  value={f.chunks.indexOf(f.chunk)}
                  onChange={(e) => (part.value = Number(e.currentTarget.value))}
                >
                  {f.chunks.map((c, i) => (
                    <option key={i} value={i}>
                      {c.start} to {c.start + c.valid - 1}
                    </option>
                  ))}
                </select>
              </label>
            )}
          </div>
        </div>
        <p class={classes(ui.dim, ui.explained)}>
          {spec?.role === "scratch"
            ? `A scratch texture after pass ${entry ? passes.of(entry) + 1 : 0} of ${passes.entry.value}; ` +
              "other passes reuse the texture for other values."
            : model.names.about(name)}
        </p>
        {isActivation && interventions.applied.value && (
          <p class={ui.dim}>Computed by the original model, without your changes.</p>
        )}
        {isActivation || spec ? (
          <Plane
            label={name}
            play={play}
            inputs={[name, memory.value, part.value, busy, busy ? 0 : texts.join()]}
            axes={axes}
            size={memory.value ? undefined : size}
          />
        ) : (
          <p class={ui.empty}>This model has no texture of this name. Choose one from the list.</p>
        )}
        <Facts name={name} found={f} memory={memory.value} />
      </div>
    </section>
  );
}

/** Returns the names of all activations, local and remote, in the order of the model. */
function activationsOf(model: Model): string[] {
  return [...(model.split && !model.placement.movable ? model.names : model.manifest).activations.keys()];
}

/** True if only the server has this activation. */
const isRemoteActivation = (model: Model, name: string) =>
  activationsOf(model).includes(name) && !model.manifest.activations.has(name);

function Facts({ name, found, memory }: { name: string; found: Found | null; memory: boolean }) {
  const { model } = engine();
  if (isRemoteActivation(model, name)) {
    if (!found) return null;
    return (
      <p class={ui.dim}>
        Matrix of {found.view.rows} x {found.view.cols}, computed by the server and fetched just now.
      </p>
    );
  }
  const { generate, capture } = model.programs;
  const spec = found ? capture.textures[found.view.texture] : generate.textures[name];
  const view = found?.view ?? generate.views[name];
  if (!spec || !view) return null;
  return (
    <p class={classes(ui.dim, style.caption)}>
      Matrix of {view.rows} x {view.cols}
      {view.tiles[0] * view.tiles[1] > 1 && `, split into ${view.tiles[0]} x ${view.tiles[1]} tiles`}
      {view.panel > 0 && `, in panels of ${view.panel} texels, ${view.stack} stacked in a layer`}; texture of{" "}
      {spec.width} x {spec.height} texels in {spec.layers} {spec.layers > 1 ? "layers" : "layer"}, each texel{" "}
      {FORMATS[view.dtype].texel}.{memory && " Layers are shown below each other; a texel's values are side by side."}
    </p>
  );
}

/** Shows a button for each block, then the names of the textures of the selected block. */
function Names() {
  const { model } = engine();
  const { names } = model;
  const activations = activationsOf(model);
  const { generate } = model.programs;
  const all = generate.textures;
  const chosen = textures.texture;
  const block = names.block(chosen.value);
  const kept = (role: string) =>
    names.sorted(
      Object.values(all)
        .filter((t) => t.role === role)
        .map((t) => t.name),
    );
  const known = new Set(activations);
  const groups: [string, string[]][] = [
    ["Activations", activations],
    ["Weights", kept("weight")],
    ["Persistent state", kept("state").filter((name) => !known.has(name))],
    ["Scratch", chosen.value.startsWith("scratch.") ? [chosen.value] : []],
  ];
  const go = (to: number) => {
    const same = names.inOther(chosen.value, to);
    const first = activations.find((name) => names.block(name) === to)!;
    chosen.value = same && (activations.includes(same) || same in all) ? same : first;
  };
  return (
    <div class={classes(ui.panel, ui.names)}>
      <div class={style.blocksRow} role="group" aria-label="Block">
        {Array.from({ length: model.placement.blocks + 1 }, (_, i) => (
          <button
            key={i}
            aria-pressed={block === i - 1}
            {...(model.placement.isRemote(i - 1) ? { class: style.there, title: "on the server" } : {})}
            onClick={() => go(i - 1)}
          >
            {i ? i - 1 : OUTSIDE}
          </button>
        ))}
      </div>
      <h2>{block < 0 ? OUTSIDE : `Block ${block}${model.placement.isRemote(block) ? ", on the server" : ""}`}</h2>
      <div class={style.list}>
        {groups.map(([title, all]) => {
          const some = all.filter((name) => names.block(name) === block);
          return some.length ? (
            <div key={title} role="group" aria-label={title}>
              <h3>{title}</h3>
              {some.map((name) => (
                <button
                  key={name}
                  class={classes(name === chosen.value && style.on)}
                  aria-pressed={name === chosen.value}
                  title={names.about(name)}
                  onClick={() => (chosen.value = name)}
                >
                  {names.place(name).part}
                  <Size of={generate.views[name]} />
                </button>
              ))}
            </div>
          ) : null;
        })}
      </div>
    </div>
  );
}

/** Shows the rows and columns of a texture, at the end of the texture's line in the list. */
function Size({ of: view }: { of: View | undefined }) {
  return view ? (
    <small aria-hidden="true">
      {view.rows} x {view.cols}
    </small>
  ) : null;
}

/** Returns the number of rows in use. The other rows are the padding of a chunk, or rows of a cache after the chunk. */
function rowsOf(model: Model, name: string, { view, chunk }: Found): number {
  const { activations } = model.manifest;
  const { kind, heads } = activations.get(name)!;
  const rows =
    kind === "scores" || kind === "pattern"
      ? chunk.valid * heads
      : kind === "cache"
        ? chunk.start + chunk.valid
        : chunk.valid;
  return Math.min(view.rows, rows);
}

/** Returns the view of an activation after chunk `part` of the text (-1: the longest chunk). Plays no passes. */
function locate({ manifest, programs }: Model, ids: readonly number[], name: string, part: number): Found {
  const { entries } = programs.capture;
  const known = sizes(Object.keys(entries), "logits_");
  const chunks = plan(ids.length, manifest.config.n_positions, known, manifest.tuning);
  const longest = chunks.reduce((a, b, i) => (b.valid > chunks[a]!.valid ? i : a), 0);
  const chunk = chunks[part < 0 ? longest : Math.min(part, chunks.length - 1)]!;
  return { view: must(entries[`logits_${chunk.size}`]?.outputs[name], `output ${name}`), chunk, chunks };
}

/** Plays the chunks of the text up to chunk `part` (-1: the longest), and returns the view of the activation. */
async function playActivation(model: Model, ids: readonly number[], name: string, part: number): Promise<Found> {
  const { player } = model.activations.capture;
  const found = locate(model, ids, name, part);
  for (const chunk of found.chunks.slice(0, found.chunks.indexOf(found.chunk) + 1)) {
    await player.prepare(`logits_${chunk.size}`);
    writeIds(player, ids, chunk);
    player.set("pos", chunk.start);
    player.play(`logits_${chunk.size}`);
  }
  return found;
}

/**
 * Returns a weight, a persistent state after the text, or a scratch texture after the pass that is selected in the
 * Passes view. Plays the passes that this needs. Returns null if the programs have no such texture or entry.
 */
async function playState(model: Model, ids: readonly number[], name: string, memory: boolean): Promise<Subject | null> {
  const { player, programs } = model;
  const view = programs.generate.views[name];
  if (programs.generate.textures[name]?.role === "scratch") {
    const entry = programs.generate.entries[passes.entry.value];
    if (!entry) return null;
    const at = passes.of(entry);
    await passes.playTo(model, entry, at);
    const last = entry.passes.findLast((p, i) => i <= at && p.outputs.some(([texture]) => texture === name));
    return writtenBy(player, name, last, ids.length);
  }
  if (!view) return null;
  await model.cache.fill(ids);
  const seen = memory ? memoryView(player.spec(name), view.dtype) : view;
  const byPosition = view.rows === model.manifest.config.n_positions && player.spec(name).role === "state";
  return { player, view: seen, rows: byPosition && !memory ? Math.min(ids.length, view.rows) : seen.rows };
}

declare module "../../stores/route" {
  interface ViewNames {
    textures: true;
  }
}

export const view: Tab<"textures"> = {
  name: "textures",
  title: "Textures",
  group: "inspect",
  icon: Grid3x3,
  params: textures.params,
  component: TexturesView,
};
