// The geometry of the machine, which is the page's diagram of the model: columns, roles of rows, labels, and the lines
// of the residual stream. The columns show the embedding, the blocks and the logits; each row shows the output of one
// stage (a pass) of all blocks.

import type { Activation, Stage } from "../../runtime/engine/manifest";

/** The role of a row of the diagram: a stage of attention or of the MLP, or the residual stream after one of these. */
export type Role = "attention" | "mlp" | "stream";

/** Consecutive rows of the same role. */
export interface Group {
  role: Role;
  first: number;
  count: number;
}

const LABELLED = 12; // with at most this many blocks, every block is labelled
const EVERY = 5; // with more blocks, every fifth block is labelled
const LABELS = 176; // pixels of the column with the rows' labels, between the embedding and the first block
const MIN_WIDTH = 700; // a narrower diagram has no labels
const WIDE = 70; // columns with at least this many pixels have gaps that are wide enough for all lines
const GAPS: readonly [number, number] = [18, 5]; // pixels between two wide columns; between two narrow columns
const BYPASS = 5; // pixels from a column to the line that bypasses its MLP
const HEAD = 4; // pixels of an arrowhead
const IN_GROUP = 1; // pixels above and below a row within a group
const AT_END = 3; // pixels above the first and below the last row of a group

/**
 * Returns the role of a stage, which shows an activation of this `kind`. `adds`: the part of the block (attention or
 * MLP) that ends with this stage; null: none.
 */
export function roleOf({ adds }: Pick<Stage, "adds">, kind: Activation["kind"] | undefined): Role {
  if (kind === "cache" || kind === "scores" || kind === "heads") return "attention";
  return adds ? "mlp" : "stream";
}

/** Groups consecutive rows of the same role. */
export function groupsOf(roles: readonly Role[]): Group[] {
  const groups: Group[] = [];
  roles.forEach((role, first) => {
    const last = groups.at(-1);
    if (last?.role === role) last.count++;
    else groups.push({ role, first, count: 1 });
  });
  return groups;
}

/** Returns the pixels that are free above and below each row. */
export function marginsOf(roles: readonly Role[]): [number, number][] {
  const pad = (same: boolean) => (same ? IN_GROUP : AT_END);
  return roles.map((role, i) => [pad(role === roles[i - 1]), pad(role === roles[i + 1])]);
}

/** Returns the blocks that have a label, with the number of columns that the label may span. */
export function labelledBlocks(blocks: number): { block: number; span: number }[] {
  const every = blocks > LABELLED ? EVERY : 1;
  return Array.from({ length: Math.ceil(blocks / every) }, (_, i) => i * every).map((block) => ({
    block,
    span: Math.min(every, blocks - block),
  }));
}

/** The diagram's columns: the embedding, a column with labels, the blocks and the logits. */
export class Layout {
  /** Width of the column with labels, as a multiple of `unit`. */
  readonly labels: number;
  /** Pixels between two columns. */
  readonly gap: number;
  /** Pixels from one column to the next. */
  readonly unit: number;

  constructor(
    /** Width of the whole diagram in pixels. */
    readonly width: number,
    /** Number of columns that show stages. */
    readonly columns: number,
  ) {
    const labels = width < MIN_WIDTH ? 0 : LABELS;
    this.unit = (width - labels) / columns;
    this.labels = this.unit ? labels / this.unit : 0;
    this.gap = GAPS[this.unit < WIDE ? 1 : 0];
  }

  /** True if the gaps are wide enough for all lines. */
  get wide(): boolean {
    return this.unit >= WIDE;
  }

  /** Returns the left edge of a column in pixels. `unit`: pixels from one column to the next. */
  left(column: number, unit = this.unit): number {
    return column * unit + (column ? Math.round(this.labels * unit) : 0);
  }

  /** Returns the right edge of a column's cells in pixels. */
  right(column: number): number {
    return this.left(column) + this.unit - this.gap;
  }
}

/** The lines and arrowheads as SVG paths, and the rectangles that cover the picture between its cells. */
export interface Wires {
  lines: string;
  heads: string;
  gaps: { x: number; y: number; width: number; height: number }[];
}

/** Returns the residual stream's lines, which lead into each block, past its parts and to the next block. */
export function wiresOf(layout: Layout, height: number, roles: readonly Role[]): Wires {
  const { columns, gap, wide } = layout;
  const row = height / roles.length;
  const y = (line: number) => (line + 0.5) * row;
  const lines: string[] = [];
  const heads: string[] = [];
  const gaps: Wires["gaps"] = [];
  const streams = roles.flatMap((role, line) => (role === "stream" ? [line] : []));
  const [first = 0, last = roles.length - 1] = [streams[0], streams.at(-1)];
  const rightwards = (x: number, at: number) => heads.push(`M${x} ${at}l${-HEAD} ${-HEAD}v${2 * HEAD}z`);
  const downwards = (x: number, at: number) => heads.push(`M${x} ${at}l${-HEAD} ${-HEAD}h${2 * HEAD}z`);
  for (let column = 0; column < columns; column++) {
    const [left, right] = [layout.left(column), layout.right(column)];
    const next = column + 1 < columns ? layout.left(column + 1) : layout.width;
    gaps.push({ x: right, y: 0, width: next - right, height });
    if (column === columns - 1) break;
    const riser = next - gap / 2;
    if (column === columns - 2) {
      lines.push(`M${right} ${y(last)}H${next - 1}`);
      if (wide) rightwards(next, y(last));
    } else {
      const from = column ? y(last) : height - 1; // the line from the embedding is below the rows' labels
      lines.push(`M${right} ${from}H${riser}V${y(0)}H${next - 1}`);
      if (wide) rightwards(next, y(0));
      if (first < last && wide) {
        lines.push(`M${riser} ${y(first)}H${next - 1}`);
        rightwards(next, y(first));
      }
    }
    if (!column) continue;
    marginsOf(roles).forEach(([, below], line) => {
      const under = marginsOf(roles)[line + 1]?.[0] ?? below;
      gaps.push({ x: left, y: (line + 1) * row - below, width: right - left, height: below + under });
      if (wide && line + 1 < roles.length && below === AT_END) downwards((left + right) / 2, (line + 1) * row + 2);
    });
    if (wide && first < last) {
      lines.push(`M${right} ${y(first)}h${BYPASS}V${y(last) - HEAD}H${right + 1}`);
      heads.push(`M${right} ${y(last) - HEAD}l${HEAD} ${-HEAD + 1}v${2 * HEAD - 2}z`);
    }
  }
  return { lines: lines.join(""), heads: heads.join(""), gaps };
}
