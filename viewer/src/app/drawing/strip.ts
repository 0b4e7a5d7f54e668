// Draws the strip: the picture in the machine, which is the page's diagram of the model. Each cell of the strip shows
// the output of one pass; such a pass is called a stage. The cells are drawn while the passes are played.

import { memoryView } from "../../runtime/engine/field";
import type { Watcher } from "../../runtime/engine/kv-cache";
import type { Model } from "../../runtime/engine/model";
import type { Entry, Pass, View } from "../../runtime/gl/program";
import type { Layout } from "./diagram";
import { CELLS, type Cell, type Painter } from "./painter";

const GAP = 1; // pixels between cells
const FLAT = 6; // matrices with fewer rows are folded into more rows
const FASTEST = 100; // minimum ms between two pictures
const MEASURED = 16; // pictures between two estimates of the values' range

/** A pass that is shown: its column and line (-1: spans all lines), and the texture that it wrote. */
export interface Stage {
  pass: number;
  label: string;
  name: string;
  /** The activation that the stage shows. */
  of: string;
  /** True if the texture holds the products from which a later pass computes the activation. */
  products: boolean;
  column: number;
  line: number;
  texture: string;
  view: View;
  /** The part of the block, such as `h.3.attn`, that ends with this stage and is then added to the stream; or null. */
  part: string | null;
  /** The dimension with an index for each position of the context; only the text's positions are drawn. null: none. */
  tokens: "rows" | "cols" | null;
}

/** Returns an entry's stages. Column 0 has the embedding, the last column the logits, and each other column a block. */
export function stages(model: Model, entry: Entry): Stage[] {
  const { n_layer } = model.manifest.config;
  const { generate } = model.programs;
  const { names } = model;
  const found: Stage[] = [];
  const passOf = (of: string) => entry.passes.findLastIndex((p) => computes(p, of));
  const add = (of: string, name: string, column: number, line: number, part: string | null, before = -1) => {
    const own = passOf(of);
    const pass = own < 0 ? before : own;
    const { label, outputs } = entry.passes[pass] ?? { label: "", outputs: [] };
    const texture = outputs[0]?.[0];
    if (texture === undefined || found.length === CELLS) return;
    const view = generate.views[texture] ?? memoryView(model.player.spec(texture));
    const kind = names.activations.get(of)?.kind;
    const tokens = kind === "cache" ? "rows" : kind === "scores" ? "cols" : null;
    found.push({ pass, label, name, of, products: own < 0, column, line, texture, view, part, tokens });
  };
  add("embed", "embed", 0, -1, null);
  for (let block = 0; block < n_layer; block++) {
    const passes = names.stages.map(({ shows }) => passOf(names.inBlock(block, shows[0]!)));
    names.stages.forEach(({ title, shows, adds }, line) => {
      // On GPUs that blend, no pass computes the hidden layer of the MLP. The pass before the next stage computes
      // products, and the next stage applies the activation function to them when it reads them.
      const before = (passes[line + 1] ?? 0) - 1;
      const products = passes.includes(before) ? -1 : before;
      add(names.inBlock(block, shows[0]!), title, 1 + block, line, adds && names.inBlock(block, adds), products);
    });
  }
  add("logits", "logits", 1 + n_layer, -1, null);
  return found.sort((a, b) => a.pass - b.pass);
}

/** True if a pass computes an activation, changes it, or writes it into a cache with the activation's name. */
function computes({ label, outputs }: Pass, name: string): boolean {
  return label === name || label === `${name}.edit` || outputs.some(([texture]) => texture === name);
}

/** Draws the stages of a token onto a canvas. Each update of the text (`see`) requests a picture of the next token. */
export class Strip implements Watcher {
  readonly stops: readonly number[];
  private readonly by: ReadonlyMap<number, number>;
  private readonly size: readonly [number, number]; // of the picture
  private drawn = 0;
  private wanted = true;
  private read = Infinity; // number of the text's tokens that the model has read; later positions are empty
  private last = -Infinity;
  /** Returns true while the page generates: the strip ignores tokens that a view decodes for other purposes. */
  live: () => boolean = () => true;
  /** Called after each picture. */
  onDrawn: () => void = () => {};

  constructor(
    private readonly model: Model,
    private readonly painter: Painter,
    readonly list: readonly Stage[],
    private readonly target: HTMLCanvasElement,
    private readonly layout: Layout,
    /** Width of a column and height of a line, in pixels of the picture. */
    private readonly unit: readonly [number, number],
  ) {
    const { columns } = layout;
    this.size = [Math.round(layout.left(columns, unit[0])), unit[1] * model.names.stages.length];
    this.stops = list.map((s) => s.pass);
    this.by = new Map(list.map((s, i) => [s.pass, i]));
  }

  /** Compiles the shaders and sets the size. Must be awaited before drawing, and again after a lost context. */
  async prepare(): Promise<void> {
    await this.painter.prepare();
    await this.painter.resizeAhead(...this.size);
  }

  wants(): boolean {
    const now = performance.now();
    if (!this.live() || !this.wanted || now - this.last < FASTEST || !this.painter.ready || document.hidden)
      return false;
    this.wanted = false;
    this.last = now;
    return true;
  }

  /** Requests a picture of the next token. `read` is the number of the text's tokens in the context. */
  see(read: number): void {
    this.read = read;
    this.wanted = true;
  }

  rest(): void {
    this.wanted = true;
  }

  look(pass: number): void {
    const number = this.by.get(pass)!;
    const stage = this.list[number]!;
    const { model, size } = this;
    const cell = this.cell(stage, number);
    const { view, tokens } = stage;
    const rows = tokens === "rows" ? Math.min(view.rows, this.read) : view.rows;
    const cols = tokens === "cols" ? Math.min(view.cols, this.read) : view.cols;
    const fold = rows < FLAT ? foldOf(rows * cols, cell.width / cell.height) : 0;
    const texture = model.player.texture(stage.texture);
    this.painter.cell(size, cell, texture, view, [rows, cols], fold, this.drawn % MEASURED === 0);
  }

  done(): void {
    this.drawn++;
    this.painter.showStrip(this.target);
    this.onDrawn();
  }

  private cell({ column, line }: Stage, number: number): Cell {
    const { length } = this.model.names.stages;
    const [width, height] = this.unit;
    const lines = line < 0 ? length : 1;
    const top = Math.max(0, line);
    return {
      x: Math.round(this.layout.left(column, width)),
      y: this.size[1] - (top + lines) * height + GAP,
      width: Math.max(1, width - GAP),
      height: Math.max(1, lines * height - GAP),
      number,
    };
  }
}

/** Returns the number of columns in which `values` values have about the aspect ratio `aspect`. */
export function foldOf(values: number, aspect: number): number {
  return 2 ** Math.max(0, Math.round(Math.log2(Math.sqrt(values * aspect))));
}
