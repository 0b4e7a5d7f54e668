// Curves over the steps: drawn by uPlot, in the page's colours.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Curve {
  name: string;
  /** A custom property of the page's colours. */
  color: string;
  values: (number | null)[];
  /** Points far apart, joined. */
  sparse?: boolean;
}

interface Props {
  label: string;
  steps: number[];
  curves: Curve[];
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

export function Curves({ label, steps, curves, log, height }: Props) {
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
        axes: [{ ...axis, size: 30 }, { ...axis, size: 54 }],
        legend: { show: false },
        cursor: { show: false },
        series: [
          {},
          ...curves.map(({ name, color, sparse }) => ({
            label: name,
            stroke: resolved(box, color),
            width: sparse ? 2 : 1.25,
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
  }, [log, height]);
  const data = useRef<uPlot.AlignedData>([[]]);
  data.current = [steps, ...curves.map((c) => c.values)];
  useEffect(() => plot.current?.setData(data.current), [steps.length, steps.at(-1), curves]);
  return <div class="curves" ref={host} role="img" aria-label={label} />;
}
