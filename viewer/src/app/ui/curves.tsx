// Line charts over training steps or rounds, drawn by uPlot in the page's colours.

import { useEffect, useRef } from "preact/hooks";
import "./locale"; // imported before uPlot, which reads the language while it loads
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import style from "./curves.module.css";

export interface Curve {
  name: string;
  /** The name of a CSS custom property, such as `--accent`. */
  color: string;
  values: (number | null)[];
  /** True to draw the points as dots joined by lines, for a curve with few points. */
  sparse?: boolean;
  /** True to draw a dashed line, which marks a curve of another run. */
  dashed?: boolean;
}

/** A horizontal line at the value `at`, with which the reader compares the curves. */
export interface Level {
  name: string;
  at: number;
}

// possible distances between ticks of the x axis, in the unit of this axis
const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5].map((power) => n * 10 ** power)).sort((a, b) => a - b);

interface Props {
  label: string;
  steps: number[];
  curves: Curve[];
  lines?: Level[];
  /** Label of the x axis. */
  unit?: string;
  /** Label of the y axis. */
  measure: string;
  /** True for a logarithmic y axis. */
  log: boolean;
  height: number;
}

/**
 * Returns the colour that a CSS custom property has in the current colour scheme. A canvas needs this colour, because
 * it does not support `light-dark()`.
 */
function resolved(host: HTMLElement, name: string): string {
  host.style.color = `var(${name})`;
  const { color } = getComputedStyle(host);
  host.style.color = "";
  return color;
}

/** Draws the levels as dashed lines with labels at their right end. Omits a label that would overlap the one below. */
function drawLines(plot: uPlot, lines: readonly Level[], stroke: string, ground: string): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = stroke;
  ctx.lineWidth = ratio;
  ctx.setLineDash([5 * ratio, 4 * ratio]);
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  ctx.textBaseline = "bottom";
  let above = Infinity;
  for (const { name, at } of [...lines].sort((a, b) => a.at - b.at)) {
    const y = plot.valToPos(at, "y", true);
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    ctx.stroke();
    if (above - y < 14 * ratio) continue;
    above = y;
    const label = [`${name} ${at.toFixed(2)}`, bbox.left + bbox.width - 4 * ratio, y - 2 * ratio] as const;
    ctx.save();
    ctx.setLineDash([]);
    ctx.lineWidth = 4 * ratio;
    ctx.strokeStyle = ground; // an outline that keeps the label legible over curves
    ctx.strokeText(...label);
    ctx.restore();
    ctx.fillText(...label);
  }
  ctx.restore();
}

export function Curves({ label, steps, curves, lines = [], unit = "step", measure, log, height }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  useEffect(() => {
    const box = host.current!;
    const make = () => {
      plot.current?.destroy();
      const grid = { stroke: resolved(box, "--line"), width: 1 };
      const axis = { stroke: resolved(box, "--dim"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
      const options: uPlot.Options = {
        width: Math.max(120, box.clientWidth),
        height,
        // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- a const enum, absent at run time
        scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
        hooks: { draw: [(drawn) => drawLines(drawn, levels.current, axis.stroke, resolved(box, "--panel"))] },
        axes: [
          { ...axis, size: 28, incrs: WHOLE, label: unit, labelSize: 18, labelGap: 0, labelFont: axis.font },
          { ...axis, size: 50, label: measure, labelSize: 18, labelGap: 0, labelFont: axis.font },
        ],
        legend: { show: true, live: true },
        cursor: { drag: { x: false, y: false }, points: { size: 6 } },
        series: [
          { label: unit },
          ...curves.map(({ name, color, sparse, dashed }) => ({
            label: name,
            value: (_: uPlot, value: number | null) => value?.toFixed(3) ?? "–",
            stroke: resolved(box, color),
            width: sparse ? 2 : 1.25,
            ...(dashed ? { dash: [4, 3] } : {}),
            spanGaps: true,
            points: { show: sparse ?? false, size: 5, fill: resolved(box, color) },
          })),
        ],
      };
      plot.current = new uPlot(options, [[], ...curves.map(() => [])], box);
    };
    make();
    const fill = () => plot.current!.setData(data.current);
    fill();
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const again = () => {
      make();
      fill();
    };
    scheme.addEventListener("change", again);
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(120, box.clientWidth), height }));
    sized.observe(box);
    return () => {
      scheme.removeEventListener("change", again);
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [log, height, curves.length]);
  const data = useRef<uPlot.AlignedData>([[]]);
  data.current = [steps, ...curves.map((c) => c.values)];
  const levels = useRef(lines);
  levels.current = lines;
  useEffect(() => plot.current?.setData(data.current), [steps.length, steps.at(-1), curves, lines.length]);
  return <div class={style.curves} ref={host} role="img" aria-label={label} />;
}
