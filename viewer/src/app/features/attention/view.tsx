// The Attention view: one token's attention as arcs over the text, all heads as a grid, and one head enlarged.

import { Waypoints, X } from "lucide";
import { useSignal, type Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { reason } from "../../../runtime/gl/errors";
import { MEAN, type Kind } from "../../drawing/attention";
import type { Grid } from "../../drawing/painter";
import { legendPlace, TICKS } from "../../drawing/scale";
import { AblateButton, LooksAt } from "../interventions";
import { RecordedAttention } from "./recorded";
import { headName, headNamed, selection } from "./store";
import { generation, type Tok } from "../../stores/generation";
import { engine } from "../../stores/model";
import { drawing } from "../../stores/drawing";
import { fraction, isWide, percent, short, useDevice, useQueries } from "../../ui/tools";
import type { View } from "../../stores/route";
import { classes } from "../../ui/classes";
import { Icon } from "../../ui/icon";
import ui from "../../ui/shared.module.css";
import style from "./style.module.css";

const ARCS = 10; // maximum number of arcs; they lead to the tokens with the largest weights
const NAMED = 3; // number of tokens that the heading lists: the ones with the largest weights
const LINE = 30; // height in pixels of a line of text with arcs
const MIN_TOKENS = 12; // minimum number of tokens to search for the sharpest head (`sharpest` of drawing/attention.ts)
const LABELS = 88; // size in pixels of the labels at the left and the top of an enlarged head
const MIN_LABELLED_CELL = 11; // minimum pixels per cell for token labels to be legible
const KIND_NAMES: Record<Kind, string> = {
  pattern: "weights (softmax)",
  scores: "scores, masked",
  raw: "raw scores, every pair",
};
const EXPLAINED: Record<Kind, string> = {
  pattern: "How much each token (row) attends to itself and to earlier tokens (columns). Each row adds up to 100%.",
  scores: "How well the row's query matches the column's key, before softmax. The causal mask hides later tokens.",
  raw: "The scores of all pairs, including those above the diagonal. The causal mask hides these from the model.",
};

/** A row of the enlarged head: the attention values of token `t` with tokens 0 to `t`. */
interface Row {
  /** The tokens that the model reads: the end of the text, as far as it fits the context. */
  tokens: readonly Tok[];
  /** The position of `tokens[0]` in the whole text. */
  from: number;
  t: number;
  values: Float32Array;
}

/**
 * Returns the kind of values to show for a layer. Servers send no raw scores: a remote layer shows masked scores
 * instead.
 */
const kindOf = (layer: number): Kind =>
  selection.kind.value === "raw" && engine().model.placement.isRemote(layer) ? "scores" : selection.kind.value;

/** Fetches a remote layer's attention; does nothing for a local layer. */
async function ready(
  { attention, model }: Awaited<ReturnType<typeof drawing.ready>>,
  layer: number,
  kind: Kind,
  ids: readonly number[],
): Promise<void> {
  if (model.placement.isRemote(layer)) await attention.fetch(ids, kind, layer);
}

function AttentionView() {
  const { model } = engine();
  const { n_head } = model.manifest.config;
  const { layer, head, kind, sought, beside } = selection;
  const total = generation.read.value.length;
  const row = useSignal<Row | null>(null);
  const looked = useSignal<number | null>(null); // the token shown while none is chosen or pointed at; null: the last
  const pointed = useSignal<number | null>(null); // the token under the pointer, in the text
  const name = headName(layer.value, head.value);
  const busy = generation.running.value;
  const scores = kind.value !== "pattern";
  // memoized, so that the arcs and the enlarged head are not rendered again for each new token
  const arcs = useMemo(() => <Arcs row={row.value} scores={scores} pointed={pointed} />, [row.value, scores]);
  const enlarged = useMemo(
    () => <Head row={row} looked={looked.value} pointed={pointed.value} />,
    [looked.value, pointed.value, busy ? -1 : total],
  );
  useQueries(model);
  useDevice(
    async (model) => {
      const wanted = () => sought.value;
      if (!wanted() || busy || total < MIN_TOKENS) return;
      const { attention } = await drawing.ready(model);
      await model.cache.fillWithQueries(generation.readIds.value);
      const [layer, head, t] = await attention.sharpest(total);
      if (!wanted()) return; // the visitor chose a head during the search
      looked.value = t;
      selection.chooseHead(layer, head);
    },
    [busy, total >= MIN_TOKENS, sought.value],
  );
  return (
    <section class={style.attention} data-view="attention" aria-label="Attention">
      <div class={classes(ui.panel, style.takes)}>{arcs}</div>
      <div class={ui.panel} data-part="all">
        <h2>Every layer and head</h2>
        <p class={ui.dim}>
          Each row is a layer; each square is a head. Click a head to enlarge it.
          {model.placement.isRemote(model.placement.blocks - 1) &&
            ` Layers ${model.manifest.config.n_layer} and up run on the server; they appear when the text is complete.`}
        </p>
        {selection.problem.value && (
          <p class={ui.problem} role="alert">
            {selection.problem.value}
          </p>
        )}
        <GridCanvas total={total} />
      </div>
      <div class={ui.panel} data-part="one">
        <div class={classes(ui.buttons, ui.title)}>
          <h2>
            Layer {layer.value}, {head.value === MEAN ? "the mean of its heads" : `head ${head.value}`}
          </h2>
          <div class={classes(ui.buttons, style.choices)}>
            <Choice
              label="Layer"
              of={layer.value}
              count={model.placement.blocks}
              set={(v) => selection.chooseHead(v, head.value)}
            />
            <Choice
              label="Head"
              of={head.value}
              count={n_head}
              mean
              set={(v) => selection.chooseHead(layer.value, v)}
            />
            <label class={ui.inline}>
              Show
              <select value={kind.value} onChange={(e) => (kind.value = e.currentTarget.value as Kind)}>
                {Object.entries(KIND_NAMES).map(([value, name]) => (
                  <option key={value} value={value}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
          </div>
        </div>
        {enlarged}
        <div class={classes(ui.buttons, style.choices, style.below)}>
          <button
            disabled={beside.value.includes(name)}
            title="Shows a small copy of this head below while you look at other heads"
            onClick={() => (beside.value = [...beside.value, name])}
          >
            Pin for comparison
          </button>
          {head.value !== MEAN && !model.placement.isRemote(layer.value) && (
            <AblateButton part={model.names.attention(layer.value, head.value)} />
          )}
          {!model.placement.isRemote(layer.value) && (
            <LooksAt part={model.names.attention(layer.value, head.value === MEAN ? null : head.value)} />
          )}
        </div>
        <p class={classes(ui.dim, ui.explained)}>{EXPLAINED[kindOf(layer.value)]}</p>
        {beside.value.length > 0 && (
          <div class={style.beside} aria-label="Pinned heads">
            {beside.value.map((name) => (
              <Beside key={name} name={name} total={total} />
            ))}
          </div>
        )}
      </div>
    </section>
  );
}

/** Shows a pinned head; a click enlarges the head. */
function Beside({ name, total }: { name: string; total: number }) {
  const { kind, beside } = selection;
  const [layer, head] = headNamed(name);
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = () => canvas.current;
  const busy = generation.running.value;
  useDevice(
    async (model) => {
      if (!total || busy) return;
      const shownKind = kindOf(layer);
      const tools = await drawing.ready(model);
      const ids = generation.readIds.value;
      await ready(tools, layer, shownKind, ids);
      const target = shown();
      if (!target) return;
      await model.cache.fillWithQueries(ids);
      tools.attention.drawHead(target, layer, head, total, shownKind);
    },
    [name, kind.value, busy, busy ? "" : generation.ids.value.join()],
  );
  const said = head === MEAN ? `layer ${layer}, mean` : `layer ${layer}, head ${head}`;
  return (
    <figure>
      <button class={style.picture} aria-label={`Enlarge ${said}`} onClick={() => selection.chooseHead(layer, head)}>
        <canvas ref={canvas} />
      </button>
      <figcaption>
        {said}
        <button
          class={ui.quiet}
          aria-label={`Remove ${said}`}
          title="Remove"
          onClick={() => (beside.value = beside.value.filter((other) => other !== name))}
        >
          <Icon of={X} />
        </button>
      </figcaption>
    </figure>
  );
}

interface ChoiceProps {
  label: string;
  of: number;
  count: number;
  mean?: boolean;
  set: (value: number) => void;
}

function Choice({ label, of, count, mean, set }: ChoiceProps) {
  return (
    <label class={ui.inline}>
      {label}
      <select value={of} onChange={(e) => set(Number(e.currentTarget.value))}>
        {Array.from({ length: count }, (_, i) => (
          <option key={i} value={i}>
            {i}
          </option>
        ))}
        {mean && <option value={MEAN}>mean of all</option>}
      </select>
    </label>
  );
}

function GridCanvas({ total }: { total: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = () => canvas.current;
  const grid = useSignal<Grid | null>(null);
  const { blocks: n_layer } = engine().model.placement;
  const { n_head } = engine().model.manifest.config;
  const { layer, head, kind } = selection;
  const busy = generation.running.value;
  useDevice(
    async (model) => {
      if (!total || !canvas.current || busy) return;
      const { attention } = await drawing.ready(model);
      if (!shown()) return; // the view was closed
      const ids = generation.readIds.value;
      await model.cache.fillWithQueries(ids);
      attention.forget();
      grid.value = attention.drawGrid(canvas.current, total, kind.value, false);
      selection.problem.value = "";
      try {
        await attention.drawTheirs(canvas.current, ids, kind.value);
      } catch (error) {
        selection.problem.value = `The server's layers are not shown. ${reason(error)}`;
      }
    },
    [busy, kind.value, total && !busy ? generation.ids.value.join() : 0],
  );
  useEffect(() => {
    let due = false;
    let latest = 0;
    const listen = (count: number) => {
      latest = count - 1; // the caches do not hold the newest token yet
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        const now = drawing.now(engine().model);
        if (now && canvas.current && generation.running.value && latest > 0 && now.model.cache.hasQueries(latest))
          grid.value = now.attention.drawGrid(canvas.current, latest, kind.value, true);
      });
    };
    return generation.upcoming.subscribe((update) => {
      if (update) listen(update.read);
    });
  }, []);
  const choose = (e: MouseEvent) => {
    const [x, y] = fraction(e);
    selection.chooseHead(Math.floor(y * n_layer), Math.floor(x * n_head));
    // in a narrow window, the enlarged head is below the grid
    if (!isWide()) document.querySelector("[data-part=one]")?.scrollIntoView({ block: "start" });
  };
  const walk = (e: KeyboardEvent) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    const within = (value: number, count: number) => Math.min(count - 1, Math.max(0, value));
    selection.chooseHead(within(layer.value + step[0]!, n_layer), within(head.value + step[1]!, n_head));
  };
  return (
    <div class={style.grid} data-wide={n_layer <= n_head} style={{ "--layers": n_layer, "--heads": n_head }}>
      <div class={style.columns} aria-hidden="true">
        {Array.from({ length: n_head }, (_, i) => (
          <span key={i}>{i ? i : "head 0"}</span>
        ))}
      </div>
      <div class={style.lines} aria-hidden="true">
        {Array.from({ length: n_layer }, (_, i) => (
          <span key={i}>{i ? i : "layer 0"}</span>
        ))}
      </div>
      <div class={style.squares}>
        <canvas
          ref={canvas}
          tabIndex={0}
          role="img"
          aria-label={
            `${KIND_NAMES[kind.value]} of ${n_layer} layers with ${n_head} heads over ${total} tokens. ` +
            `Arrow keys choose a head: layer ${layer.value}, head ${head.value === MEAN ? "mean" : head.value}.`
          }
          onClick={choose}
          onKeyDown={walk}
        />
        <span
          class={style.frame}
          style={{
            left: `${(100 * Math.max(0, head.value)) / n_head}%`,
            top: `${(100 * layer.value) / n_layer}%`,
            width: `${head.value === MEAN ? 100 : 100 / n_head}%`,
            height: `${100 / n_layer}%`,
          }}
        />
      </div>
    </div>
  );
}

/** Shows the enlarged head with token labels at the left and the top. During a generation, keeps the previous text. */
function Head({ row, looked, pointed }: { row: Signal<Row | null>; looked: number | null; pointed: number | null }) {
  const { layer, head, kind } = selection;
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = () => canvas.current;
  const scroll = useRef<HTMLDivElement>(null);
  const zoom = useSignal(0); // pixels per cell; 0: fit to the width, but keep labels legible
  const room = useSignal(480);
  const kept = useRef({ tokens: generation.read.value, from: generation.readFrom.value });
  const above = useSignal<{ s: number; values: Float32Array } | null>(null);
  const over = useSignal<[number, number] | null>(null); // (query, key) under the pointer
  const busy = generation.running.value;
  if (!busy || !kept.current.tokens.length)
    kept.current = { tokens: generation.read.value, from: generation.readFrom.value };
  const { tokens, from } = kept.current;
  const total = tokens.length;
  const last = total - 1;
  const chosen = generation.chosen.value === null ? (looked ?? last) : generation.chosen.value - from;
  const t = Math.min(over.value?.[0] ?? pointed ?? (chosen < 0 ? last : chosen), last);
  const shownKind = kindOf(layer.value);
  const r = row.value;
  // the key with the largest value in row t; it is shown unless the pointer selects another key
  const hardest = r?.t === t ? r.values.indexOf(Math.max(...r.values)) : t;
  const k = over.value && (over.value[1] <= t || shownKind === "raw") ? over.value[1] : hardest;
  useDevice(
    async (model) => {
      if (!total || !canvas.current || busy) return;
      const [of, which] = [layer.value, head.value]; // fixed here: the choice may change during an await
      const tools = await drawing.ready(model);
      const ids = tokens.map((tok) => tok.id);
      await ready(tools, of, shownKind, ids);
      const target = shown();
      if (!target) return; // the view was closed
      await model.cache.fillWithQueries(ids);
      tools.attention.drawHead(target, of, which, total, shownKind);
    },
    [layer.value, head.value, kind.value, busy, tokens.map((tok) => tok.id).join()],
  );
  useDevice(
    async (model) => {
      if (!total || busy) return;
      const [of, which] = [layer.value, head.value];
      const tools = await drawing.ready(model);
      const { attention } = tools;
      const ids = tokens.map((tok) => tok.id);
      await ready(tools, of, shownKind, ids);
      await model.cache.fillWithQueries(ids);
      row.value = { tokens, from, t, values: ofHead(await attention.row(of, t, shownKind), which) };
      if (k > t) above.value = { s: k, values: ofHead(await attention.ahead(of, k), which) };
    },
    [layer.value, head.value, kind.value, t, k > t ? k : -1, busy, tokens.map((tok) => tok.id).join()],
  );
  const fit = room.value / Math.max(1, total);
  const cell = Math.max(zoom.value || Math.min(26, Math.max(MIN_LABELLED_CELL + 2, fit)), 2);
  // scrolls to the cell of the displayed value, unless the pointer is on the picture
  useLayoutEffect(() => {
    const box = scroll.current;
    if (!box || over.value) return;
    const seen = (at: number, from: number, size: number) => at >= from && at + cell <= from + size;
    const [rows, columns] = [box.clientHeight - LABELS, box.clientWidth - LABELS];
    if (!seen(t * cell, box.scrollTop, rows)) box.scrollTop = t * cell - rows / 2;
    if (!seen(k * cell, box.scrollLeft, columns)) box.scrollLeft = k * cell - columns / 2;
  }, [t, k, cell, over.value === null]);
  useLayoutEffect(() => {
    const fit = () => (room.value = Math.max(200, (scroll.current?.clientWidth ?? 500) - LABELS - 4));
    fit();
    const observer = new ResizeObserver(fit);
    if (scroll.current) observer.observe(scroll.current);
    return () => observer.disconnect();
  }, []);
  const value =
    k > t ? (above.value?.s === k ? above.value.values[t] : undefined) : r?.t === t ? r.values[k] : undefined;
  const name = (i: number) => tokens[i]?.label ?? "";
  const number = (v: number) => (shownKind === "pattern" ? `${(100 * v).toFixed(2)}%` : short(v));
  const said = value === undefined ? "…" : value === -Infinity ? "masked" : number(value);
  const point = (e: MouseEvent) => {
    const [x, y] = fraction(e);
    over.value = [Math.floor(y * total), Math.floor(x * total)];
  };
  return (
    <>
      <p class={ui.reading} role="status">
        <code>{name(t)}</code> {k > t ? "would attend to" : "attends to"} <code>{name(k)}</code>: <b>{said}</b>
        <span class={style.spacer} />
        <Legend kind={shownKind} />
        <label class={classes(ui.inline, style.zoom)}>
          Zoom
          <input
            type="range"
            min={2}
            max={32}
            step={1}
            value={Math.round(cell)}
            onInput={(e) => (zoom.value = Number(e.currentTarget.value))}
          />
        </label>
      </p>
      <div class={style.head} ref={scroll} tabIndex={0} aria-label="The enlarged head; scrollable">
        <div class={style.table} style={{ "--cell": `${cell}px`, "--total": total }}>
          <Labels list={tokens} side="columns" at={k} shown={cell >= MIN_LABELLED_CELL} />
          <Labels list={tokens} side="lines" at={t} shown={cell >= MIN_LABELLED_CELL} />
          <div
            class={classes(style.square, shownKind === "raw" && style.raw)}
            onMouseMove={point}
            onMouseLeave={() => (over.value = null)}
            onClick={() => (generation.chosen.value = from + t)}
          >
            <canvas
              ref={canvas}
              role="img"
              aria-label={
                `Attention of layer ${layer.value}, ` +
                (head.value === MEAN ? "mean of its heads" : `head ${head.value}`)
              }
            />
            {over.value && (
              <>
                <span class={style.line} style={{ top: `calc(var(--cell) * ${t})` }} />
                <span class={style.column} style={{ left: `calc(var(--cell) * ${k})` }} />
              </>
            )}
          </div>
        </div>
      </div>
    </>
  );
}

function Labels({ list, side, at, shown }: { list: readonly Tok[]; side: string; at: number; shown: boolean }) {
  return (
    <div class={style[side]} aria-hidden="true">
      {shown ? (
        list.map((tok, i) => (
          <span key={i} class={classes(i === at && style.on)}>
            {tok.label}
          </span>
        ))
      ) : (
        <i>{side === "lines" ? "queries" : "keys"}: zoom in to read the tokens</i>
      )}
    </div>
  );
}

/** Shows the colour scale for a kind of values. The scale is linear in the opacity of the picture, not in the value. */
function Legend({ kind }: { kind: Kind }) {
  const name = (value: number) => (kind === "pattern" ? `${100 * value}%` : String(value).replace("-", "−"));
  return (
    <span
      class={classes(style.ramp, !(kind === "pattern") && style.signed)}
      role="img"
      aria-label={`Colours of ${KIND_NAMES[kind]}`}
    >
      <i />
      {TICKS[kind].map((value) => (
        <small key={value} data-value={value} style={{ left: `${(100 * legendPlace(kind, value)).toFixed(2)}%` }}>
          {name(value)}
        </small>
      ))}
    </span>
  );
}

/** Returns one head's values from `rows`, which has a row per head; for `MEAN`, the mean of the rows. */
function ofHead(rows: readonly Float32Array[], head: number): Float32Array {
  if (head !== MEAN) return rows[head]!;
  return rows[0]!.map((_, i) => rows.reduce((sum, row) => sum + row[i]!, 0) / rows.length);
}

function softmax(scores: Float32Array): Float32Array {
  const peak = Math.max(...scores);
  const e = scores.map((x) => Math.exp(x - peak));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => x / sum);
}

/**
 * Shows the text. Each token is shaded by how much the token of `row` attends to it. Arcs lead to the other tokens with
 * the largest weights: at most `ARCS` tokens, and only weights above 1%.
 */
function Arcs({ row, scores, pointed }: { row: Row | null; scores: boolean; pointed: Signal<number | null> }) {
  const box = useRef<HTMLDivElement>(null);
  const paths = useSignal<{ d: string; w: number }[]>([]);
  const width = useSignal(0);
  const { tokens = [], t = 0 } = row ?? {};
  const weights = row ? (scores ? softmax(row.values) : row.values) : new Float32Array(0);
  const most = Math.max(...weights);
  const order = Array.from(weights.keys()).sort((a, b) => weights[b]! - weights[a]!);
  useLayoutEffect(() => {
    const frame = box.current;
    if (!frame) return;
    const observer = new ResizeObserver(() => (width.value = frame.clientWidth));
    observer.observe(frame);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const frame = box.current;
    const spans = frame?.querySelectorAll<HTMLElement>("button") ?? [];
    const top = (i: number): [number, number] => {
      const { offsetLeft, offsetTop, offsetWidth } = spans[i]!;
      return [offsetLeft + offsetWidth / 2, offsetTop];
    };
    const [x, y] = spans[t] ? top(t) : [0, 0];
    const seen = frame && y > frame.scrollTop && y + LINE < frame.scrollTop + frame.clientHeight;
    if (frame && !seen && pointed.value === null) frame.scrollTop = y - frame.clientHeight + 2 * LINE;
    const taken = order.filter((i) => i !== t && weights[i]! > 0.01 && spans[i]);
    paths.value = taken.slice(0, ARCS).map((i) => {
      const [u, v] = top(i);
      const up = Math.max(2, Math.min(v, y) - 12 - Math.min(40, Math.abs(x - u) / 5));
      return { d: `M${x} ${y} C${x} ${up} ${u} ${up} ${u} ${v}`, w: weights[i]! };
    });
  }, [row, scores, width.value]);
  return (
    <>
      <h2>
        {row ? (
          <>
            What <code>{tokens[t]?.label}</code> attends to:{" "}
            <small>
              {order.slice(0, NAMED).map((i, place) => (
                <span key={i}>
                  {place > 0 && ", "}
                  <code>{tokens[i]?.label}</code> {percent(weights[i]!)}
                </span>
              ))}
            </small>
          </>
        ) : generation.running.value ? (
          <>
            What a token attends to <small>when the text is complete</small>
          </>
        ) : (
          "What a token attends to"
        )}
      </h2>
      <p class={ui.dim}>
        Point at a token: the arcs lead to the earlier tokens that it attends to most, in the selected head.
      </p>
      <div class={style.arcs} ref={box} onMouseLeave={() => (pointed.value = null)}>
        {tokens.map((tok, i) => (
          <button
            key={i}
            class={classes(i === t ? style.on : i > t && style.later)}
            style={{ "--weight": i <= t ? ((weights[i] ?? 0) / most).toFixed(3) : "0" }}
            title={i <= t ? `${tok.label} ${percent(weights[i] ?? 0)}` : tok.label}
            onMouseEnter={() => (pointed.value = i)}
            onClick={() => (generation.chosen.value = (row?.from ?? 0) + i)}
          >
            {tok.label}
          </button>
        ))}
        <svg aria-hidden="true">
          {paths.value.map(({ d, w }, i) => (
            <path key={i} d={d} style={{ strokeWidth: 1 + 5 * w, opacity: 0.3 + 0.7 * Math.sqrt(w) }} />
          ))}
        </svg>
      </div>
    </>
  );
}

declare module "../../stores/route" {
  interface ViewNames {
    attention: true;
  }
}

export const view: View<"attention"> = {
  name: "attention",
  title: "Attention",
  group: "use",
  icon: Waypoints,
  params: selection.params,
  component: AttentionView,
  recorded: RecordedAttention,
  fit: () => selection.fit(),
};
