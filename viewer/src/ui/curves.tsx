// Curves over the steps: drawn by uPlot, in the page's colours.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import "./curves.css";

export interface Curve {
  name: string;
  /** A custom property of the page's colours. */
  color: string;
  values: (number | null)[];
  /** Points far apart, joined. */
  sparse?: boolean;
  /** Of another run. */
  dashed?: boolean;
}

/** A level to compare with. */
export interface Level {
  name: string;
  at: number;
}

const WHOLE = [1, 2, 5].flatMap((n) => [0, 1, 2, 3, 4, 5].map((power) => n * 10 ** power)).sort((a, b) => a - b); // between ticks

interface Props {
  label: string;
  steps: number[];
  curves: Curve[];
  lines?: Level[];
  /** What a place on the x axis is, and what the y axis measures. */
  unit?: string;
  measure: string;
  log: boolean;
  height: number;
}

/** What a custom property of the page means in this scheme; `light-dark()` is nothing that a canvas knows. */
function resolved(host: HTMLElement, name: string): string {
  host.style.color = `var(${name})`;
  const { color } = getComputedStyle(host);
  host.style.color = "";
  return color;
}

/** Draws the levels as dashed lines, each named at its right end where no other name stands. */
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
    ctx.strokeStyle = ground; // so that curves do not cross it out
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
        // eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- the enum is not there at run time
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
  return <div class="curves" ref={host} role="img" aria-label={label} />;
}
