// Every intermediate by its name: as a matrix and as it lies in memory.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { Chunk } from "../chunks";
import { plan, sizes, writeIds } from "../chunks";
import { unpack } from "../layout";
import type { Model } from "../model";
import { must, type View } from "../program";
import * as state from "./state";
import { drawing, short, useDevice } from "./tools";

interface Shown {
  name: string;
  view: View;
  chunk: Chunk;
  matrix: Float32Array;
  low: number;
  high: number;
  mean: number;
  bins: number[];
  texels: string;
}

const SIDE = 640;
const BINS = 48;

export function TexturesView() {
  const names = Object.keys(state.engine().model.manifest.activations);
  const name = useSignal(names[0]!);
  const memory = useSignal(false);
  const shown = useSignal<Shown | null>(null);
  const point = useSignal<[number, number] | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const busy = state.running.value;
  useDevice(
    async (model) => {
      if (!canvas.current || busy || !state.ids.value.length) return;
      const found = await load(model, state.ids.value, name.value);
      shown.value = found;
      await drawShown(model, canvas.current, found, memory.value);
    },
    [name.value, memory.value, busy, busy ? 0 : state.ids.value.join()],
  );
  const s = shown.value;
  const rows = s ? rowsOf(s) : 1;
  const over = point.value;
  const value = s && over ? s.matrix[over[0] * s.view.cols + over[1]] : undefined;
  return (
    <section class="textures" aria-label="Textures">
      <div class="panel names">
        <h2>Intermediates</h2>
        <select
          size={14}
          aria-label="Intermediate"
          value={name.value}
          onChange={(e) => (name.value = e.currentTarget.value)}
        >
          {names.map((n) => (
            <option key={n} value={n}>
              {n}
            </option>
          ))}
        </select>
      </div>
      <div class="panel">
        <h2>
          <code>{name.value}</code>
        </h2>
        <div class="buttons">
          <label class="inline">
            <input type="checkbox" checked={memory.value} onChange={(e) => (memory.value = e.currentTarget.checked)} />{" "}
            as it lies in memory
          </label>
        </div>
        <div class="plane">
          <canvas
            ref={canvas}
            role="img"
            aria-label={`Values of ${name.value}`}
            onMouseLeave={() => (point.value = null)}
            onMouseMove={(e) => {
              const box = e.currentTarget.getBoundingClientRect();
              const x = (e.clientX - box.left) / box.width;
              const y = (e.clientY - box.top) / box.height;
              point.value =
                s && !memory.value
                  ? [Math.min(rows - 1, Math.floor(y * rows)), Math.min(s.view.cols - 1, Math.floor(x * s.view.cols))]
                  : null;
            }}
          />
        </div>
        <p class="reading" role="status">
          {over && value !== undefined
            ? `row ${over[0]}, column ${over[1]}: ${short(value)}`
            : memory.value
              ? "A texel's first three values as red, green and blue; layers below one another."
              : "Blue is positive, orange negative."}
        </p>
        {s && (
          <>
            <p class="dim">
              {rows} x {s.view.cols}, tiles {s.view.tiles.join(" x ")}, {s.view.dtype}; tokens {s.chunk.start} to{" "}
              {s.chunk.start + s.chunk.valid - 1}; {s.texels}. Range {short(s.low)} to {short(s.high)}, mean{" "}
              {short(s.mean)}.
            </p>
            <Histogram bins={s.bins} low={s.low} high={s.high} />
          </>
        )}
      </div>
    </section>
  );
}

function Histogram({ bins, low, high }: { bins: number[]; low: number; high: number }) {
  const most = Math.max(1, ...bins.map((b) => Math.log1p(b)));
  return (
    <figure class="histogram">
      <svg
        viewBox={`0 0 ${BINS} 20`}
        preserveAspectRatio="none"
        role="img"
        aria-label="Histogram of the values, logarithmic"
      >
        {bins.map((b, i) => (
          <rect
            key={i}
            x={i + 0.08}
            width={0.84}
            y={20 - (20 * Math.log1p(b)) / most}
            height={(20 * Math.log1p(b)) / most}
          />
        ))}
      </svg>
      <figcaption>
        <span>{short(low)}</span>
        <span>how often, logarithmic</span>
        <span>{short(high)}</span>
      </figcaption>
    </figure>
  );
}

/** Rows that hold something: a chunk may be padded, and caches reach to the end of the context. */
function rowsOf({ name, view, chunk }: Pick<Shown, "name" | "view" | "chunk">): number {
  const { activations, config } = state.engine().model.manifest;
  const kind = activations[name];
  const rows =
    kind === "scores" || kind === "pattern"
      ? chunk.valid * config.n_head
      : kind === "cache"
        ? chunk.start + chunk.valid
        : chunk.valid;
  return Math.min(view.rows, rows);
}

/** Plays the text up to its last chunk and takes that chunk's texture. */
async function load(model: Model, text: readonly number[], name: string): Promise<Shown> {
  const { player } = model.capture;
  const ids = text.slice(0, model.manifest.config.n_positions);
  const chunks = plan(
    ids.length,
    model.manifest.config.n_positions,
    sizes(Object.keys(player.program.entries), "logits_"),
  );
  for (const chunk of chunks) {
    await player.prepare(`logits_${chunk.size}`);
    writeIds(player, ids, chunk);
    player.set("pos", chunk.start);
    player.play(`logits_${chunk.size}`);
  }
  const chunk = chunks.at(-1)!;
  const view = must(player.program.entries[`logits_${chunk.size}`]?.outputs[name], `output ${name}`);
  const spec = player.spec(view.texture);
  const matrix = unpack(view, await player.read(view.texture));
  const values = matrix.subarray(0, rowsOf({ name, view, chunk }) * view.cols).filter((v) => v > -1e29);
  let low = Infinity;
  let high = -Infinity;
  let sum = 0;
  for (const v of values) {
    low = Math.min(low, v);
    high = Math.max(high, v);
    sum += v;
  }
  const bins = new Array<number>(BINS).fill(0);
  for (const v of values) bins[Math.min(BINS - 1, Math.floor(((v - low) / (high - low || 1)) * BINS))]!++;
  const texels = `${spec.width} x ${spec.height} x ${spec.layers} texels of ${spec.format === "float" ? "four floats" : "eight halves"}`;
  return { name, view, chunk, matrix, low, high, mean: sum / values.length, bins, texels };
}

async function drawShown(model: Model, canvas: HTMLCanvasElement, s: Shown, memory: boolean): Promise<void> {
  const { painter } = await drawing(model);
  const spec = model.capture.player.spec(s.view.texture);
  const rows = memory ? spec.height * spec.layers : rowsOf(s);
  const cols = memory ? spec.width : s.view.cols;
  const times = (n: number) => (n >= SIDE ? Math.min(n, 1024) : n * Math.floor(SIDE / n));
  const scale = Math.max(Math.abs(s.low), Math.abs(s.high)) || 1;
  const size = { width: times(cols), height: Math.min(times(rows), 1024) };
  painter.matrix(canvas, model.capture.player.texture(s.view.texture), s.view, {
    rows,
    memory,
    scale: scale / 2,
    ...size,
  });
}
