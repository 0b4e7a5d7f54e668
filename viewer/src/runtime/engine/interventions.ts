// Parses and resolves interventions, which ablate, scale, steer or patch parts of a model or replace their attention
// pattern. On the desktop these are `glgpt.Ablate`, `Scale`, `Steer`, `Patch` and `Attend`.

import { PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { shape } from "./layout";
import type { Activation, Manifest } from "./manifest";
import { Names } from "./names";

/**
 * Steering adds a direction, multiplied by `Intervention.factor`, to a block's output. The direction is the difference
 * of the block's outputs at the last tokens of two texts. An empty text counts as an output of zeros.
 */
export interface Steering {
  towards: string;
  away: string;
}

/**
 * Patching replaces a part's output at token `position` with the part's output at this position of `text`, or at the
 * last token of a shorter `text`.
 */
export interface Patch {
  position: number;
  text: string;
}

/** A parsed intervention. `written` returns its text form. */
export interface Intervention {
  part: string;
  /** Factor of the part's output; with `steering`, factor of the direction. */
  factor: number;
  steering: Steering | null;
  patch: Patch | null;
  /** The attention pattern to use, one of the manifest's `patterns`; null: unchanged. */
  pattern: string | null;
}

/**
 * A change of an activation: y = x * gain + shift. `head`: the head that it changes; null: all heads. `at`: the only
 * position that it changes; undefined: all positions.
 */
export interface ResolvedIntervention {
  name: string;
  head: number | null;
  gain: number;
  shift: Float32Array | null;
  at?: number;
  /** For an attention pattern: its index in the manifest's `patterns`, plus 1. */
  how?: number;
}

/**
 * Parses an intervention. `h.3.attn.5` ablates a head, `h.3.mlp*0.5` scales an MLP's output, `h.2~love~hate~4` steers
 * block 2, `h.3.mlp@7@To be` patches token 7, `h.3.attn.5:previous` makes a head attend to the previous token. Texts
 * are URL-encoded. Throws PageError for any other form.
 */
export function parseIntervention(word: string): Intervention {
  const plain = { factor: 0, steering: null, patch: null, pattern: null };
  const wrong = new PageError(
    `${word} is not a change of a part; expected PART, PART*0.5, PART@7@text, PART:previous (attention) or ` +
      "BLOCK~towards~away~4 (a block).",
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
      throw wrong; // a % without an escape
    }
  };
  if (part === undefined) throw wrong;
  if (sign === undefined) return { part, ...plain };
  if (sign === "*" && fields.length === 1) return { part, ...plain, factor: number(fields[0]) };
  if (sign === ":" && fields.length === 1 && fields[0]) return { part, ...plain, pattern: fields[0] };
  if (sign === "~" && fields.length === 3) {
    const [towards, away, by] = fields as [string, string, string];
    if (!towards && !away) throw new PageError(`${word} steers between two empty texts; give at least one text.`);
    return { part, ...plain, factor: number(by), steering: { towards: unescaped(towards), away: unescaped(away) } };
  }
  const position = sign === "@" && fields.length === 2 ? number(fields[0]) : -1;
  if (!Number.isInteger(position) || position < 0) throw wrong;
  return { part, ...plain, patch: { position, text: unescaped(fields[1]!) } };
}

/** Returns the text form of an intervention, without commas, for a link. */
export function written({
  part,
  factor = 0,
  steering,
  patch,
  pattern,
}: Pick<Intervention, "part"> & Partial<Intervention>): string {
  const escaped = (text: string) => encodeURIComponent(text).replaceAll("~", "%7E");
  if (pattern) return `${part}:${pattern}`;
  if (patch) return [part, patch.position, escaped(patch.text)].join("@");
  if (steering) return [part, escaped(steering.towards), escaped(steering.away), factor].join("~");
  return factor ? `${part}*${factor}` : part;
}

/** True if the intervention only ablates or scales a part. */
export const scales = (word: string): boolean => /^[^~@:]*$/.test(word);

/** Returns the name of the residual stream after a block, which steering changes. Throws PageError for other parts. */
export function streamBehind(manifest: Manifest, part: string): string {
  const names = Names.of(manifest);
  const block = names.whole(part);
  const name = block < 0 ? undefined : names.stream(block + 1).at(-1);
  if (name === undefined || !manifest.activations.has(name)) {
    throw new PageError(`${part} is not a block of this model that can be steered.`);
  }
  return name;
}

/** Returns the activation and head that patching a part replaces. For a block: the residual stream after the block. */
export function patched(manifest: Manifest, part: string): { name: string; head: number | null } {
  const outs = added(manifest, part);
  if (outs.length === 1) return { name: outs[0]!, head: null };
  return outs.length ? { name: streamBehind(manifest, part), head: null } : headOf(manifest, part, "heads");
}

/** Returns the activations that a part adds to the residual stream: one for `h.3.attn` or `h.3.mlp`, both for `h.3`. */
function added(manifest: Manifest, part: string): string[] {
  const names = Names.of(manifest);
  const all = names.added(names.block(`${part}.`));
  return all
    .filter((each) => each.part === part || names.whole(part) >= 0)
    .flatMap(({ out }) => (manifest.activations.has(out) ? [out] : []));
}

/** Parses the name of a head: `h.3.attn.5` is head 5 of `h.3.attn`; null: the name has another form. */
export function headIn(names: Names, part: string): { of: string; head: number } | null {
  for (const { part: of } of names.added(names.block(part))) {
    const rest = part.startsWith(`${of}.`) ? part.slice(of.length + 1) : "";
    if (/^\d+$/.test(rest)) return { of, head: Number(rest) };
  }
  return null;
}

/** Returns the activation of this kind for a head such as `h.3.attn.5`. Throws PageError for other parts. */
function headOf(manifest: Manifest, part: string, kind: "heads" | "pattern"): { name: string; head: number } {
  const names = Names.of(manifest);
  const found = headIn(names, part);
  const name = found ? ofKind(manifest, found.of, kind) : undefined;
  if (!found || name === undefined || found.head >= manifest.activations.get(name)!.heads) {
    const examples = names.partsOf(0).join(", ");
    throw new PageError(`${part} is not a part of this model that can be changed; expected one like ${examples}.`);
  }
  return { name, head: found.head };
}

/** Returns the activation of this kind that a part such as `h.3.attn` computes; undefined: there is none. */
function ofKind({ activations }: Manifest, part: string, kind: Activation["kind"]): string | undefined {
  return [...activations.keys()].find((name) => name.startsWith(`${part}.`) && activations.get(name)!.kind === kind);
}

/**
 * Converts an intervention to changes of activations. It changes the activations of a head (`h.3.attn.5`), the output
 * of a part (`h.3.attn`, `h.3.mlp`), or both outputs of a block (`h.3`). Steering changes only the second output of a
 * block. Patching a block replaces the residual stream after the block. `values`: the direction for steering, or the
 * output to patch in. Throws PageError for an unknown part or pattern.
 */
export function resolve(
  manifest: Manifest,
  { part, factor, steering, patch, pattern }: Intervention,
  values: Float32Array | null = null,
): ResolvedIntervention[] {
  const outs = added(manifest, part);
  if (pattern) return [looking(manifest, part, pattern)];
  if (patch && values) return [{ ...patched(manifest, part), gain: 0, shift: values, at: patch.position }];
  if (steering && values)
    return outs.slice(-1).map((name) => ({ name, head: null, gain: 1, shift: values.map((x) => factor * x) }));
  if (outs.length) return outs.map((name) => ({ name, head: null, gain: factor, shift: null }));
  return [{ ...headOf(manifest, part, "heads"), gain: factor, shift: null }];
}

/** Throws PageError if the model does not have the part or the attention pattern of an intervention. */
export function checkIntervention(manifest: Manifest, change: Intervention): void {
  if (change.patch) patched(manifest, change.part);
  else if (change.steering) streamBehind(manifest, change.part);
  else resolve(manifest, change);
}

function looking(manifest: Manifest, part: string, pattern: string): ResolvedIntervention {
  const { patterns = [] } = manifest;
  if (!patterns.includes(pattern)) {
    const known = patterns.length ? `expected ${patterns.join(", ")}` : "this page was exported without patterns";
    throw new PageError(`${pattern} is not an attention pattern; ${known}.`);
  }
  const whole = added(manifest, part).length === 1 ? ofKind(manifest, part, "pattern") : undefined;
  const of = whole === undefined ? headOf(manifest, part, "pattern") : { name: whole, head: null };
  return { ...of, gain: 1, shift: null, how: 1 + patterns.indexOf(pattern) };
}

/**
 * Writes gains, shifts, patched positions and attention patterns to a player whose program supports them. Throws
 * PageError, before anything is written, if a part is patched at several positions.
 */
export function writeInterventions(
  player: Player,
  manifest: Manifest,
  resolved: readonly ResolvedIntervention[],
): void {
  const of = (name: string) => resolved.filter((each) => each.name === name);
  const positions = new Map(resolved.map(({ name }) => [name, positionOf(of(name))]));
  for (const [texture, view] of Object.entries(player.program.views)) {
    const [, name, kind] = /^edit\.(.*)\.(gain|shift|at|how)$/.exec(texture) ?? [];
    if (name === undefined) continue;
    const own = of(name);
    const { heads = 1, width = 1 } = manifest.activations.get(name) ?? {};
    const values = new Float32Array(4 * shape(view).width * view.rows);
    if (kind === "at") values[0] = positions.get(name) ?? -1;
    else if (kind === "how")
      for (const { head, how = 0 } of own) for (let h = head ?? 0; h <= (head ?? heads - 1); h++) values[4 * h] = how;
    else fillColumns(values, kind === "gain", own, view.rows, view.cols / heads, width);
    for (let row = 0; row < view.rows; row++) {
      player.write(
        texture,
        0,
        row,
        1,
        new Uint8Array(values.buffer, (row * values.byteLength) / view.rows, values.byteLength / view.rows),
      );
    }
  }
}

/** Returns the position at which a part is patched; -1: none. Throws PageError if there are several positions. */
function positionOf(resolved: readonly ResolvedIntervention[]): number {
  const [at = -1, ...more] = new Set(resolved.flatMap((each) => each.at ?? []));
  if (more.length) {
    const where = `${resolved[0]!.name} is patched at tokens ${at} and ${more[0]}`;
    throw new PageError(`${where}; a part can be patched at only one token.`);
  }
  return at;
}

/** Fills rows of gain or shift. The first row is for all positions; the second row is for the patched position. */
function fillColumns(
  values: Float32Array,
  gains: boolean,
  resolved: readonly ResolvedIntervention[],
  rows: number,
  across: number,
  width: number,
): void {
  const wide = values.length / rows;
  values.fill(gains ? 1 : 0);
  for (const { head, gain, shift, at } of resolved) {
    const [from, end] = head === null ? [0, wide] : [head * across, (head + 1) * across];
    for (let row = at === undefined ? 0 : 1; row < rows; row++) {
      for (let i = from; i < end; i++) {
        const to = row * wide + i;
        // heads are padded to whole texels
        const column = head === null ? i : i - from < width ? head * width + i - from : -1;
        values[to] = gains ? values[to]! * gain : values[to]! * gain + (shift?.[column] ?? 0);
      }
    }
  }
}
