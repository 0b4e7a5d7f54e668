// Parts of a model that are changed: switched off, scaled, steered, patched, or made to look elsewhere; as `glgpt.Ablate`,
// `Scale`, `Steer`, `Patch` and `Attend` on the desktop.

import { PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { shape } from "./layout";
import type { Activation, Manifest } from "./manifest";
import { Names } from "./names";

/** Steering: `factor` times the way from the last token of one text to that of another is added to a block's output. */
export interface Steering {
  towards: string;
  away: string;
}

/** Patching: at token `position`, a part gives what it gives there in `text`; at its last token where that is shorter. */
export interface Patch {
  position: number;
  text: string;
}

/** What is asked for, in one word (`written`): a part, and a factor for what it adds; with `steering`, of the direction. */
export interface Intervention {
  part: string;
  factor: number;
  steering: Steering | null;
  patch: Patch | null;
  /** Where attention looks: one of the manifest's `patterns`; null: where it does by itself. */
  pattern: string | null;
}

/** An activation's columns, of all or one of its heads (null: all): y = x gain + shift; with `at`, at that position alone. */
export interface ResolvedIntervention {
  name: string;
  head: number | null;
  gain: number;
  shift: Float32Array | null;
  at?: number;
  /** Of an attention pattern: 1 more than an index of the manifest's `patterns`. */
  how?: number;
}

/**
 * `h.3.attn.5` switches a head off, `h.3.mlp*0.5` halves what an MLP adds, `h.2~love~hate~4` steers block 2, `h.3.mlp@7@To be`
 * patches token 7, `h.3.attn.5:previous` makes a head look at the token before; texts are escaped.
 */
export function parseIntervention(word: string): Intervention {
  const plain = { factor: 0, steering: null, patch: null, pattern: null };
  const wrong = new PageError(
    `${word} is no change of a part; write PART, PART*0.5, PART@7@text, for attention PART:previous, or for a block BLOCK~towards~away~4.`,
  );
  const [, part, sign, rest] = /^([^*~@:]*)(?:([*~@:])(.*))?$/.exec(word) ?? [];
  const fields = rest?.split(sign!) ?? [];
  const number = (text: string | undefined) => {
    const found = text?.trim() ? Number(text) : NaN;
    if (!Number.isFinite(found)) throw wrong;
    return found;
  };
  const unescaped = (text: string) => {
    try {
      return decodeURIComponent(text);
    } catch {
      throw wrong; // a % that begins no escape
    }
  };
  if (part === undefined) throw wrong;
  if (sign === undefined) return { part, ...plain };
  if (sign === "*" && fields.length === 1) return { part, ...plain, factor: number(fields[0]) };
  if (sign === ":" && fields.length === 1 && fields[0]) return { part, ...plain, pattern: fields[0] };
  if (sign === "~" && fields.length === 3) {
    const [towards, away, by] = fields as [string, string, string];
    return { part, ...plain, factor: number(by), steering: { towards: unescaped(towards), away: unescaped(away) } };
  }
  const position = sign === "@" && fields.length === 2 ? number(fields[0]) : -1;
  if (!Number.isInteger(position) || position < 0) throw wrong;
  return { part, ...plain, patch: { position, text: unescaped(fields[1]!) } };
}

/** The same as one word without commas, as a link has it. */
export function written({ part, factor = 0, steering, patch, pattern }: Pick<Intervention, "part"> & Partial<Intervention>): string {
  const escaped = (text: string) => encodeURIComponent(text).replaceAll("~", "%7E");
  if (pattern) return `${part}:${pattern}`;
  if (patch) return [part, patch.position, escaped(patch.text)].join("@");
  if (steering) return [part, escaped(steering.towards), escaped(steering.away), factor].join("~");
  return factor ? `${part}*${factor}` : part;
}

/** Whether a word switches a part off or scales it, and does nothing else. */
export const scales = (word: string): boolean => /^[^~@:]*$/.test(word);

/** The residual stream after a block, whose direction `steering` takes. Throws for a part that is no block. */
export function streamBehind(manifest: Manifest, part: string): string {
  const names = Names.of(manifest);
  const block = names.whole(part);
  const name = block < 0 ? undefined : names.stream(block + 1).at(-1);
  if (name === undefined || !manifest.activations.has(name)) throw new PageError(`${part} is no block of this model that can be steered.`);
  return name;
}

/** The activation that patching a part replaces, and which of its heads: of a block, the residual stream after it. */
export function patched(manifest: Manifest, part: string): { name: string; head: number | null } {
  const outs = added(manifest, part);
  if (outs.length === 1) return { name: outs[0]!, head: null };
  return outs.length ? { name: streamBehind(manifest, part), head: null } : headOf(manifest, part, "heads");
}

/** What a part adds to the residual stream: `h.3.attn` and `h.3.mlp` one thing, `h.3` both. */
function added(manifest: Manifest, part: string): string[] {
  const names = Names.of(manifest);
  const all = names.added(names.block(`${part}.`));
  return all.filter((each) => each.part === part || names.whole(part) >= 0).flatMap(({ out }) => (manifest.activations.has(out) ? [out] : []));
}

/** A part that has heads, and which of its own it names: `h.3.attn.5` is head 5 of `h.3.attn`; null: it is not of that form. */
export function headIn(names: Names, part: string): { of: string; head: number } | null {
  for (const { part: of } of names.added(names.block(part))) {
    const rest = part.startsWith(`${of}.`) ? part.slice(of.length + 1) : "";
    if (/^\d+$/.test(rest)) return { of, head: Number(rest) };
  }
  return null;
}

/** An activation with heads, `h.3.attn.5` one of them. Throws for a part that is no head. */
function headOf(manifest: Manifest, part: string, kind: "heads" | "pattern"): { name: string; head: number } {
  const names = Names.of(manifest);
  const found = headIn(names, part);
  const name = found ? ofKind(manifest, found.of, kind) : undefined;
  if (!found || name === undefined || found.head >= manifest.activations.get(name)!.heads) {
    throw new PageError(`${part} is no part of this model that can be cut; parts are such as ${names.partsOf(0).join(", ")}.`);
  }
  return { name, head: found.head };
}

/** The activation of this kind that a part such as `h.3.attn` computes. */
function ofKind({ activations }: Manifest, part: string, kind: Activation["kind"]): string | undefined {
  return [...activations.keys()].find((name) => name.startsWith(`${part}.`) && activations.get(name)!.kind === kind);
}

/**
 * What a part means: `h.3.attn.5` a head, `h.3.attn` and `h.3.mlp` what they add, `h.3` both. `values` are those of the
 * direction to steer to, or of what a part gives where it is patched. Throws for a part that the model lacks.
 */
export function resolve(manifest: Manifest, { part, factor, steering, patch, pattern }: Intervention, values: Float32Array | null = null): ResolvedIntervention[] {
  const outs = added(manifest, part);
  if (pattern) return [looking(manifest, part, pattern)];
  if (patch && values) return [{ ...patched(manifest, part), gain: 0, shift: values, at: patch.position }];
  if (steering && values) return outs.slice(-1).map((name) => ({ name, head: null, gain: 1, shift: values.map((x) => factor * x) }));
  if (outs.length) return outs.map((name) => ({ name, head: null, gain: factor, shift: null }));
  return [{ ...headOf(manifest, part, "heads"), gain: factor, shift: null }];
}

function looking(manifest: Manifest, part: string, pattern: string): ResolvedIntervention {
  const { patterns = [] } = manifest;
  if (!patterns.includes(pattern)) throw new PageError(`${pattern} is no pattern of attention; there are ${patterns.join(", ") || "none here"}.`);
  const whole = added(manifest, part).length === 1 ? ofKind(manifest, part, "pattern") : undefined;
  const of = whole === undefined ? headOf(manifest, part, "pattern") : { name: whole, head: null };
  return { ...of, gain: 1, shift: null, how: 1 + patterns.indexOf(pattern) };
}

/** Writes what every part is multiplied with, what is added, and where attention looks, into a player of a program that has resolved. */
export function writeInterventions(player: Player, manifest: Manifest, resolved: readonly ResolvedIntervention[]): void {
  for (const [texture, view] of Object.entries(player.program.views)) {
    const [, name, kind] = /^edit\.(.*)\.(gain|shift|at|how)$/.exec(texture) ?? [];
    if (name === undefined) continue;
    const own = resolved.filter((each) => each.name === name);
    const { heads = 1, width = 1 } = manifest.activations.get(name) ?? {};
    const values = new Float32Array(4 * shape(view).width * view.rows);
    if (kind === "at") values[0] = positionOf(own);
    else if (kind === "how") for (const { head, how = 0 } of own) for (let h = head ?? 0; h <= (head ?? heads - 1); h++) values[4 * h] = how;
    else fillColumns(values, kind === "gain", own, view.rows, view.cols / heads, width);
    for (let row = 0; row < view.rows; row++) {
      player.write(texture, 0, row, 1, new Uint8Array(values.buffer, (row * values.byteLength) / view.rows, values.byteLength / view.rows));
    }
  }
}

/** The position at which a part is patched; -1: none. Throws for several. */
function positionOf(resolved: readonly ResolvedIntervention[]): number {
  const [at = -1, ...more] = new Set(resolved.flatMap((each) => each.at ?? []));
  if (more.length) throw new PageError(`${resolved[0]!.name} is patched at tokens ${at} and ${more[0]}; a part can be patched at one.`);
  return at;
}

/** Rows of gain or shift: the first for all positions, the second for the one that is patched. */
function fillColumns(values: Float32Array, gains: boolean, resolved: readonly ResolvedIntervention[], rows: number, across: number, width: number): void {
  const wide = values.length / rows;
  values.fill(gains ? 1 : 0);
  for (const { head, gain, shift, at } of resolved) {
    const [from, end] = head === null ? [0, wide] : [head * across, (head + 1) * across];
    for (let row = at === undefined ? 0 : 1; row < rows; row++) {
      for (let i = from; i < end; i++) {
        const to = row * wide + i;
        const column = head === null ? i : i - from < width ? head * width + i - from : -1; // heads are padded to whole texels
        values[to] = gains ? values[to]! * gain : values[to]! * gain + (shift?.[column] ?? 0);
      }
    }
  }
}
