// A texture's values as a picture: colours, range, histogram, and the value under the pointer.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { readField, type Field } from "../../runtime/engine/field";
import type { Player } from "../../runtime/gl/player";
import type { Model } from "../../runtime/engine/model";
import { gradient, PALETTES } from "../drawing/palettes";
import type { View } from "../../runtime/gl/program";
import { Axis, type Axes } from "./axis";
import { drawing } from "../stores/drawing";
import { fraction, short, useDevice } from "./tools";
import { classes } from "./classes";
import ui from "./shared.module.css";
import style from "./plane.module.css";

const WIDEST = 2048; // maximum width of a picture in pixels; the picture of a wider matrix skips columns
const HIGHEST = 1024; // maximum height of a picture in pixels; the picture of a higher matrix skips rows

/** The matrix to show. The passes that compute it have been played. */
export interface Subject {
  player: Player;
  view: View;
  /** The number of rows that hold values. Only these rows are shown. */
  rows: number;
  /** The column, in texels, at which the matrix begins in each layer of the texture; 0 by default. */
  firstColumn?: number;
}

interface Props {
  label: string;
  /** Plays the passes that compute the matrix, and returns it; null: there is nothing to show yet. */
  play: (model: Model) => Promise<Subject | null>;
  /** The values that `play` depends on. When one changes, `play` is called and its matrix is drawn again. */
  inputs: readonly unknown[];
  axes?: Axes;
  /** The expected size of the matrix. The page reserves this space until the matrix is drawn. */
  size?: { rows: number; cols: number } | undefined;
}

type RangeKind = "inner" | "full" | "own";

export function Plane({ label, play, inputs, axes = {}, size }: Props) {
  const { rowName, colName } = axes;
  const canvas = useRef<HTMLCanvasElement>(null);
  const shown = () => canvas.current;
  const field = useSignal<Field | null>(null);
  const fieldLabel = useSignal(""); // label of the matrix in `field`: the previous one until the next is drawn
  const palette = useSignal(0);
  const rangeKind = useSignal<RangeKind>("inner");
  const own = useSignal<[number, number]>([-1, 1]);
  const first = useSignal(0);
  const over = useSignal<[number, number] | null>(null);
  const problem = useSignal("");
  const colors = PALETTES[palette.value] ?? PALETTES[0];
  const f = field.value;
  useEffect(() => {
    first.value = 0;
  }, [label]);
  const range = (g: Field): [number, number] => {
    if (rangeKind.value === "own") return own.value;
    const [low, high] = rangeKind.value === "full" ? [g.low, g.high] : g.inner;
    const far = Math.max(Math.abs(low), Math.abs(high));
    return colors.signed ? [-far, far] : [low, high];
  };
  const drawn = useDevice(
    async (model) => {
      const subject = await play(model);
      if (!subject || !shown()) return;
      const { painter } = await drawing.ready(model);
      const { player, view, firstColumn = 0 } = subject;
      const found = await readField(player, view, subject.rows, first.value, firstColumn);
      const target = shown();
      if (!target) return; // the view is gone
      const times = (n: number, most: number, least: number) =>
        n > most ? most : n * Math.max(1, Math.floor(least / n));
      const { rows, height } = found;
      painter.matrix(
        target,
        player.texture(view.texture),
        view,
        { rows, first: found.first, height, firstColumn, range: range(found), palette: colors },
        times(view.cols, WIDEST, 1),
        times(rows, HIGHEST, 1),
      );
      field.value = found;
      fieldLabel.value = label;
    },
    [...inputs, palette.value, rangeKind.value, own.value.join(), first.value],
    (why) => {
      problem.value = why;
      if (why) field.value = null;
    },
  );
  const cell = over.value;
  const value = f && cell && fieldLabel.value === label ? f.values[cell[0] * f.view.cols + cell[1]] : undefined;
  const real = (r: number) =>
    f && f.height < f.tile ? Math.floor(r / f.height) * f.tile + f.first + (r % f.height) : r;
  const named = (kind: string, at: number, name?: (at: number) => string) =>
    `${kind} ${at}${name?.(at) ? ` (${name(at)})` : ""}`;
  const [low, high] = f ? range(f) : [0, 1];
  return (
    <div>
      <div class={style.frame}>
        <p class={classes(ui.reading, style.value)} role="status">
          {f && cell && value !== undefined ? (
            <>
              {named("row", real(cell[0]), rowName)}, {named("column", cell[1], colName)}:{" "}
              <b>{value < -1e29 ? "masked" : short(value)}</b>
            </>
          ) : (
            <span class={problem.value ? ui.problem : ui.dim}>
              {problem.value || (drawn.value ? "Drawing…" : "Point at the picture to read a value.")}
            </span>
          )}
        </p>
        <div class={style.plane} hidden={problem.value !== ""}>
          {colName && <Axis count={f?.view.cols ?? 0} name={colName} across />}
          {rowName && <Axis count={f?.rows ?? 0} name={(r) => rowName(real(r))} across={false} />}
          <canvas
            ref={canvas}
            role="img"
            aria-label={`Values of ${label}`}
            style={
              f ? { "--rows": f.rows, "--cols": f.view.cols } : size ? { "--rows": size.rows, "--cols": size.cols } : {}
            }
            onMouseLeave={() => (over.value = null)}
            onMouseMove={(e) => {
              const [x, y] = fraction(e);
              over.value = f ? [Math.floor(y * f.rows), Math.floor(x * f.view.cols)] : null;
            }}
          />
        </div>
        {f && f.height < f.tile && (
          <label class={classes(ui.inline, ui.wide, style.rows)}>
            Rows {f.first} to {f.first + f.height - 1} of {f.tile}
            <input
              type="range"
              min={0}
              max={f.tile - f.height}
              step={Math.max(1, Math.floor(f.height / 2))}
              value={f.first}
              onChange={(e) => (first.value = Number(e.currentTarget.value))}
            />
          </label>
        )}
        <div class={classes(ui.buttons, style.scaleRow)}>
          <label class={ui.inline}>
            Colours
            <select value={palette.value} onChange={(e) => (palette.value = Number(e.currentTarget.value))}>
              {PALETTES.map((p, i) => (
                <option key={p.name} value={i}>
                  {p.name}
                </option>
              ))}
            </select>
          </label>
          <label class={ui.inline}>
            Range
            <select
              value={rangeKind.value}
              onChange={(e) => {
                if (f) own.value = range(f);
                rangeKind.value = e.currentTarget.value as RangeKind;
              }}
            >
              <option value="inner">middle 99% of values</option>
              <option value="full">all values</option>
              <option value="own">custom</option>
            </select>
          </label>
          {rangeKind.value === "own" &&
            ([0, 1] as const).map((end) => (
              <input
                key={end}
                type="number"
                step="any"
                class={style.end}
                aria-label={end ? "Highest value" : "Lowest value"}
                value={own.value[end]}
                onChange={(e) => {
                  const v = Number(e.currentTarget.value);
                  own.value = end ? [own.value[0], v] : [v, own.value[1]];
                }}
              />
            ))}
          <span class={style.key}>
            <small>{short(low)}</small>
            <i style={{ background: gradient(colors) }} aria-hidden="true" />
            <small>{short(high)}</small>
          </span>
        </div>
      </div>
      <Histogram field={f} />
    </div>
  );
}

function Histogram({ field }: { field: Field | null }) {
  const bins = field?.bins ?? [];
  const most = Math.max(1, ...bins.map((b) => Math.log1p(b)));
  return (
    <figure class={style.histogram}>
      <svg
        viewBox={`0 0 ${Math.max(1, bins.length)} 20`}
        preserveAspectRatio="none"
        role="img"
        aria-label="Histogram of the values, logarithmic"
      >
        {bins.map((b, i) => {
          const high = (20 * Math.log1p(b)) / most;
          return <rect key={i} x={i + 0.08} width={0.84} y={20 - high} height={high} />;
        })}
      </svg>
      <figcaption>
        <span>{field ? short(field.low) : ""}</span>
        <span>{field ? `mean ${short(field.mean)} · counts on a logarithmic scale` : ""}</span>
        <span>{field ? short(field.high) : ""}</span>
      </figcaption>
    </figure>
  );
}
