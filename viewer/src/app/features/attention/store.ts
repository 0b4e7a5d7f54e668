// The selection of the Attention view: the enlarged head, the pinned heads, and the kind of values that they show.

import { batch, signal } from "@preact/signals";
import { KINDS, MEAN, type Kind } from "../../drawing/attention";
import { param, parseOneOf, parseWhole } from "../../stores/link";
import { engine } from "../../stores/model";

export const headName = (ofLayer: number, which: number) => `${ofLayer}.${which === MEAN ? "mean" : which}`;

/** Returns the layer and head of a name such as `3.5` or `3.mean`. */
export function headNamed(name: string): [number, number] {
  const [ofLayer, which] = name.split(".");
  return [Number(ofLayer), which === "mean" ? MEAN : Number(which)];
}

class AttentionStore {
  readonly layer = signal(0);
  /** The index of a head, or MEAN. */
  readonly head = signal(0);
  /** True if no head was chosen: the view then selects the sharpest head (`sharpest` in drawing/attention.ts). */
  readonly sought = signal(true);
  /** Pinned heads, as `layer.head`. */
  readonly beside = signal<string[]>([]);
  readonly kind = signal<Kind>("pattern");
  /** The reason why the remote layers are not shown; empty if they are shown. */
  readonly problem = signal("");

  readonly params = [
    param({ key: "kind", signal: this.kind, parse: parseOneOf(KINDS), default: () => "pattern" as const }),
    param({
      key: "layer",
      signal: this.layer,
      parse: parseWhole,
      format: (value) => this.unlessSought(String(value)),
      default: () => 0,
    }),
    param({
      key: "head",
      signal: this.head,
      parse: (text) => (text === "mean" ? MEAN : parseWhole(text)),
      format: (value) => this.unlessSought(value === MEAN ? "mean" : String(value)),
      default: () => 0,
    }),
    param({ key: "head", signal: this.sought, parse: () => false, format: () => null, default: () => true }),
    param<string[]>({
      key: "beside",
      signal: this.beside,
      parse: (text) => text.split(",").filter((name) => /^\d+\.(\d+|mean)$/.test(name)),
      format: (names) => names.join() || null,
      default: () => [],
    }),
  ];

  chooseHead(ofLayer: number, which: number): void {
    batch(() => {
      this.layer.value = ofLayer;
      this.head.value = which;
      this.sought.value = false;
    });
  }

  /** Restricts the selection to the current model's layers and heads. */
  fit(): void {
    const { placement, manifest } = engine().model;
    const { blocks } = placement;
    const { n_head } = manifest.config;
    this.layer.value = Math.min(this.layer.value, blocks - 1);
    this.head.value = Math.min(this.head.value, n_head - 1);
    this.beside.value = this.beside.value.filter((name) => {
      const [ofLayer, which] = headNamed(name);
      return ofLayer < blocks && which < n_head;
    });
  }

  private unlessSought(text: string): string | null {
    return this.sought.value ? null : text;
  }
}

export const selection = new AttentionStore();
