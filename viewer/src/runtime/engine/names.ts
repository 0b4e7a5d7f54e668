// Parses the names of a model's activations, parameters and parts. Their captions and explanations come from the
// manifest.

import type { Activation, Family, Manifest, Stage } from "./manifest";

/**
 * A parsed name. For `h.3.mlp.act`: block 3, the template `h.{}.` of the prefix, and the part `mlp.act`. A name without
 * a block has block -1 and the prefix "".
 */
export interface Place {
  block: number;
  prefix: string;
  part: string;
}

const known = new WeakMap<Manifest, Names>();

export class Names {
  /** All activations in the order of computation, including those of a server's blocks. */
  readonly activations: ReadonlyMap<string, Activation>;
  readonly stages: readonly Stage[];
  readonly positions: Family["positions"];
  private readonly family: Family;
  private readonly words: ReadonlyMap<string, { order: number; title: string; about: string }>;
  private readonly places = new Map<string, Place>();

  /** Returns a model's names, built once for each manifest. */
  static of(manifest: Manifest): Names {
    let names = known.get(manifest);
    if (!names) known.set(manifest, (names = new Names(manifest)));
    return names;
  }

  private constructor({ family, activations, split }: Manifest) {
    this.family = family;
    this.stages = family.stages;
    this.positions = family.positions;
    this.activations = new Map([...activations, ...(split?.activations ?? [])]);
    this.words = new Map(
      family.names.map(({ name, title = "", about = "" }, order) => [name, { order, title, about }]),
    );
  }

  /** Returns the parsed name of an activation, a parameter, a state or a pass. */
  place(name: string): Place {
    let found = this.places.get(name);
    if (!found) this.places.set(name, (found = this.parsed(name)));
    return found;
  }

  private parsed(name: string): Place {
    for (const prefix of this.family.blocks) {
      const [before, after] = prefix.split("{}") as [string, string];
      const end = name.indexOf(after, before.length);
      const number = name.slice(before.length, Math.max(end, 0));
      if (name.startsWith(before) && /^\d+$/.test(number)) {
        return { block: Number(number), prefix, part: name.slice(end + after.length) };
      }
    }
    return { block: -1, prefix: "", part: name };
  }

  /** Returns the block of a name; -1: none. */
  block(name: string): number {
    return this.place(name).block;
  }

  /** Returns the full name of an activation within a block. */
  inBlock(block: number, part: string): string {
    return this.filled(this.family.blocks[0]!, block) + part;
  }

  /** Returns the name of a block, such as `h.3`, and the names of its parts that add to the residual stream. */
  partsOf(block: number): string[] {
    return [this.inBlock(block, "").replace(/\.$/, ""), ...this.added(block).map(({ part }) => part)];
  }

  /** Returns the name of a block's attention, such as `h.3.attn`, or of one of its heads, such as `h.3.attn.5`. */
  attention(block: number, head: number | null = null): string {
    const heads = (part: string) =>
      [...this.activations].some(([name, { kind }]) => kind === "heads" && name.startsWith(`${part}.`));
    const part = this.added(block).find((each) => heads(each.part))!.part;
    return head === null ? part : `${part}.${head}`;
  }

  /** Returns the number of the block that `part` names, such as 3 for `h.3`; -1: `part` is not a whole block. */
  whole(part: string): number {
    const { block, part: rest } = this.place(`${part}.`);
    return rest ? -1 : block;
  }

  /** Returns `name` with its block's number replaced by `block`; null if it has no block, or if `block` is negative. */
  inOther(name: string, block: number): string | null {
    const { prefix, part } = this.place(name);
    return prefix && block >= 0 ? this.filled(prefix, block) + part : null;
  }

  /** Returns the names of the residual stream after the embedding and after each of this many blocks. */
  stream(blocks: number): string[] {
    const [first, each] = this.family.stream;
    return [first, ...Array.from({ length: blocks }, (_, i) => this.filled(each, i))];
  }

  /**
   * Returns the parts of a block that add to the residual stream, in order, each with the activation that it adds.
   */
  added(block: number): { part: string; out: string }[] {
    return this.family.adds.map(({ part, out }) => ({
      part: this.inBlock(block, part),
      out: this.inBlock(block, out),
    }));
  }

  /** Returns the captions (one or two words each) of the names in a pass's label; "" if a name has no caption. */
  title(label: string): string {
    const titles = joined(label).map((name) => this.described(name)?.title);
    return titles.every(Boolean) ? titles.join(", ") : "";
  }

  /** Returns the one-line explanations of the names in a pass's label; "" if no name has an explanation. */
  about(label: string): string {
    const abouts = joined(label).map((name) => this.described(name)?.about);
    return abouts.filter(Boolean).join("; ");
  }

  /**
   * Sorts names by block. Within a block, names that the model's family (its kind of architecture) lists come first, in
   * the order of that list. The others follow alphabetically, with numbers by value.
   */
  sorted(names: readonly string[]): string[] {
    const order = (name: string) => this.described(name)?.order ?? Infinity;
    return [...names].sort((a, b) => this.block(a) - this.block(b) || compare(order(a), order(b)) || natural(a, b));
  }

  private described(name: string) {
    const { prefix, part } = this.place(name);
    return this.words.get(prefix + part);
  }

  private filled(template: string, block: number): string {
    return template.replace("{}", String(block));
  }
}

/** Returns the names in the label of a pass: one name, or the names of all passes that a recording joined. */
export const joined = (label: string): string[] => label.split(", ");

const compare = (a: number, b: number) => (a === b ? 0 : a - b);
const collator = new Intl.Collator("en", { numeric: true });

/** Compares texts alphabetically, but numbers in them by value. */
export const natural = (a: string, b: string): number => collator.compare(a, b);
