// Which tokens each head looks at: all heads as they grow, one of them large, and one token's looks as arcs.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Kind } from "../attention";
import type { Grid } from "../gl/painter";
import * as state from "./state";
import { drawing, drawingNow, short, useDevice } from "./tools";

const ARCS = 48; // tokens that the arcs span
const ARC_COUNT = 12; // the greatest weights that get an arc

export function AttentionView() {
  const { n_layer, n_head, n_positions } = state.engine().model.manifest.config;
  const layer = useSignal(0);
  const head = useSignal(0);
  const kind = useSignal<Kind>("pattern");
  const total = Math.min(state.tokens.value.length, n_positions);
  const busy = state.running.value;
  return (
    <section class="attention" aria-label="Attention">
      <div class="panel">
        <h2>Every layer and head</h2>
        <p class="dim">
          One row of squares a layer, one square a head. In a square, each line is a token and shows how much it takes
          from the tokens before it. Choose one to enlarge it.
        </p>
        <GridCanvas
          total={total}
          busy={busy}
          chosen={[layer.value, head.value]}
          choose={(l, h) => ((layer.value = l), (head.value = h))}
        />
      </div>
      <div class="panel">
        <h2>
          Layer {layer.value}, head {head.value}
        </h2>
        <div class="buttons">
          <Stepper label="Layer" of={layer.value} count={n_layer} set={(v) => (layer.value = v)} />
          <Stepper label="Head" of={head.value} count={n_head} set={(v) => (head.value = v)} />
          <label class="inline">
            Show
            <select value={kind.value} onChange={(e) => (kind.value = e.currentTarget.value as Kind)}>
              <option value="pattern">weights (softmax)</option>
              <option value="scores">scores (masked)</option>
            </select>
          </label>
        </div>
        {busy ? (
          <p class="dim">The large square appears when the text is complete.</p>
        ) : (
          <Head layer={layer.value} head={head.value} kind={kind.value} total={total} />
        )}
      </div>
    </section>
  );
}

function Stepper({
  label,
  of,
  count,
  set,
}: {
  label: string;
  of: number;
  count: number;
  set: (value: number) => void;
}) {
  return (
    <label class="inline">
      {label}
      <select value={of} onChange={(e) => set(Number(e.currentTarget.value))}>
        {Array.from({ length: count }, (_, i) => (
          <option value={i}>{i}</option>
        ))}
      </select>
    </label>
  );
}

function GridCanvas(props: {
  total: number;
  busy: boolean;
  chosen: [number, number];
  choose: (layer: number, head: number) => void;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const grid = useSignal<Grid | null>(null);
  const { total, busy, chosen, choose } = props;
  const { n_layer } = state.engine().model.manifest.config;
  useDevice(
    async (model) => {
      if (!total || !canvas.current || busy) return;
      const { attention } = await drawing(model);
      const ids = state.ids.value.slice(0, total);
      model.fill(ids);
      attention.forget();
      grid.value = attention.drawGrid(canvas.current, total, false);
    },
    [busy, total && !busy ? state.ids.value.join() : 0],
  );
  useEffect(() => {
    let due = false;
    let latest = 0;
    const listen = (count: number) => {
      // The caches hold what the device was given: all but the token that was chosen last.
      latest = count - 1;
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        const { model } = state.engine();
        const now = drawingNow(model);
        if (now && canvas.current && state.running.value && latest > 0)
          grid.value = now.attention.drawGrid(canvas.current, latest, true);
      });
    };
    state.listeners.add(listen);
    return () => void state.listeners.delete(listen);
  }, []);
  const at = (e: MouseEvent): [number, number] => {
    const box = (e.currentTarget as HTMLElement).getBoundingClientRect();
    const pitch = box.width / (grid.value?.heads ?? 1);
    return [
      Math.min(n_layer - 1, Math.floor((e.clientY - box.top) / pitch)),
      Math.min((grid.value?.heads ?? 1) - 1, Math.floor((e.clientX - box.left) / pitch)),
    ];
  };
  const g = grid.value;
  return (
    <div class="grid" style={{ aspectRatio: `${g?.heads ?? 1} / ${g ? n_layer : 1}` }}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Attention weights of ${n_layer} layers over ${total} tokens`}
        onClick={(e) => choose(...at(e))}
      />
      {g && (
        <span
          class="frame"
          style={{
            left: `${(100 * chosen[1]) / g.heads}%`,
            top: `${(100 * chosen[0]) / n_layer}%`,
            width: `${100 / g.heads}%`,
            height: `${100 / n_layer}%`,
          }}
        />
      )}
    </div>
  );
}

function Head({ layer, head, kind, total }: { layer: number; head: number; kind: Kind; total: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const row = useSignal<{ t: number; weights: Float32Array } | null>(null);
  const over = useSignal<[number, number] | null>(null); // (query, key) under the cursor
  const text = state.ids.value.slice(0, total);
  const t = Math.min(over.value?.[0] ?? state.chosen.value ?? total - 1, total - 1);
  useDevice(
    async (model) => {
      if (!total || !canvas.current) return;
      const { attention } = await drawing(model);
      model.fill(text);
      attention.drawHead(canvas.current, layer, head, total, kind);
    },
    [layer, head, kind, text.join()],
  );
  useDevice(
    async (model) => {
      if (!total) return;
      const { attention } = await drawing(model);
      model.fill(text);
      row.value = { t, weights: (await attention.row(layer, t, kind))[head]! };
    },
    [layer, head, kind, t, text.join()],
  );
  const point = (e: MouseEvent) => {
    const box = (e.currentTarget as HTMLElement).getBoundingClientRect();
    const q = Math.floor(((e.clientY - box.top) / box.height) * total);
    const k = Math.floor(((e.clientX - box.left) / box.width) * total);
    over.value = q >= 0 && q < total && k >= 0 && k < total ? [q, k] : null;
  };
  const r = row.value;
  const k = Math.min(over.value?.[1] ?? t, t);
  const name = (i: number) => state.tokens.value[i]?.label ?? "";
  const value = r?.t === t ? r.weights[k] : undefined;
  return (
    <>
      <div class="head">
        <canvas ref={canvas} role="img" aria-label={`Attention of layer ${layer}, head ${head}`} onMouseMove={point} />
        {over.value && (
          <span
            class="cross"
            style={{
              top: `${(100 * (over.value[0] + 0.5)) / total}%`,
              left: `${(100 * (over.value[1] + 0.5)) / total}%`,
            }}
          />
        )}
      </div>
      <p class="reading" role="status">
        <code>{name(t)}</code> looks at <code>{name(k)}</code>:{" "}
        <b>{value === undefined ? "…" : kind === "pattern" ? `${(100 * value).toFixed(2)}%` : short(value)}</b>
      </p>
      {r && (
        <Arcs
          t={r.t}
          weights={kind === "pattern" ? r.weights : softmax(r.weights)}
          choose={(i) => ((over.value = null), (state.chosen.value = i))}
        />
      )}
    </>
  );
}

function softmax(scores: Float32Array): Float32Array {
  const peak = Math.max(...scores);
  const e = scores.map((x) => Math.exp(x - peak));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

/** The chosen token and what it looks at, as arcs over the tokens. */
function Arcs({ t, weights, choose }: { t: number; weights: Float32Array; choose: (t: number) => void }) {
  const strip = useRef<HTMLDivElement>(null);
  const from = Math.max(0, t - ARCS + 1);
  const shown = state.tokens.value.slice(from, t + 1);
  const step = 56;
  const least = [...weights].sort((a, b) => b - a)[ARC_COUNT] ?? 0;
  const x = (i: number) => (i - from + 0.5) * step;
  useEffect(() => {
    if (strip.current) strip.current.scrollLeft = strip.current.scrollWidth;
  }, [t]);
  return (
    <div class="arcs" ref={strip}>
      <svg width={shown.length * step} height={96} aria-hidden="true">
        {shown.map((_, j) => {
          const i = from + j;
          const w = weights[i] ?? 0;
          if (i === t || w < 0.005 || w <= least) return null;
          const high = Math.min(88, 18 + Math.abs(x(t) - x(i)) / 4);
          return (
            <path
              key={i}
              d={`M${x(t)} 96 C${x(t)} ${96 - high} ${x(i)} ${96 - high} ${x(i)} 96`}
              style={{ strokeWidth: 0.5 + 7 * w, opacity: 0.25 + 0.75 * Math.sqrt(w) }}
            />
          );
        })}
      </svg>
      <div class="strip">
        {shown.map((tok, j) => (
          <button
            key={from + j}
            class={from + j === t ? "on" : ""}
            style={{ width: `${step}px`, "--weight": (weights[from + j] ?? 0).toFixed(3) }}
            title={`${tok.label} ${(100 * (weights[from + j] ?? 0)).toFixed(1)}%`}
            onClick={() => choose(from + j)}
          >
            {tok.label}
          </button>
        ))}
      </div>
    </div>
  );
}
