// Parts of a model that are changed: switched off, scaled, or steered; as `glgpt.Ablate`, `Scale` and `Steer` on the desktop.

import { PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { shape } from "./layout";
import type { Manifest } from "./manifest";

/** Steering: `factor` times the way from the last token of one text to that of another is added to a block's output. */
export interface Steering {
  towards: string;
  away: string;
}

/** What is asked for, in one word (`written`): a part, and a factor for what it adds; with `steering`, of the direction. */
export interface Change {
  part: string;
  factor: number;
  steering: Steering | null;
}

/** An activation's columns, of all or one of its heads (null: all): y = x gain + shift. */
export interface Cut {
  name: string;
  head: number | null;
  gain: number;
  shift: Float32Array | null;
}

/** `h.3.attn.5` switches a head off, `h.3.mlp*0.5` halves what an MLP adds, `h.2~love~hate~4` steers block 2; texts are escaped. */
export function parseChange(text: string): Change {
  const [steered, towards, away, by, ...more] = text.split("~");
  const [part = "", scale, ...rest] = steered!.split("*");
  const factor = Number(towards === undefined ? (scale ?? 0) : by);
  if (!Number.isFinite(factor) || more.length || rest.length || (towards !== undefined && (by === undefined || scale !== undefined))) {
    throw new PageError(`${text} is no change of a part; write PART, PART*0.5, or for a block BLOCK~towards~away~4.`);
  }
  if (towards === undefined) return { part, factor, steering: null };
  return { part, factor, steering: { towards: decodeURIComponent(towards), away: decodeURIComponent(away!) } };
}

/** The same as one word without commas, as a link has it. */
export function written({ part, factor, steering }: Change): string {
  const escaped = (text: string) => encodeURIComponent(text).replaceAll("~", "%7E");
  if (steering) return [part, escaped(steering.towards), escaped(steering.away), factor].join("~");
  return factor ? `${part}*${factor}` : part;
}

/** The residual stream behind a block, whose direction `steering` takes. Throws for a part that is no block. */
export function streamBehind(manifest: Manifest, part: string): string {
  const name = Object.keys(manifest.activations).findLast((n) => n.startsWith(`${part}.`));
  if (name === undefined || !/^\w+\.\d+$/.test(part)) throw new PageError(`${part} is no block of this model that can be steered.`);
  return name;
}

/** What a part means: `h.3.attn.5` a head, `h.3.attn` and `h.3.mlp` what they add, `h.3` both. Throws for others. */
export function resolve(manifest: Manifest, { part, factor }: Change, direction: Float32Array | null = null): Cut[] {
  const { activations } = manifest;
  const outs = Object.keys(activations).filter((name) => name.startsWith(`${part}.`) && name.endsWith(".out"));
  if (direction) return outs.slice(-1).map((name) => ({ name, head: null, gain: 1, shift: direction.map((x) => factor * x) }));
  if (outs.length) return outs.map((name) => ({ name, head: null, gain: factor, shift: null }));
  const [, of, number] = /^(.*)\.(\d+)$/.exec(part) ?? [];
  const name = Object.keys(activations).find((n) => n.startsWith(`${of}.`) && activations[n]!.kind === "heads");
  if (name === undefined || Number(number) >= activations[name]!.heads) {
    const parts = new Set(Object.keys(activations).flatMap((n) => (n.includes(".") ? [n.slice(0, n.lastIndexOf("."))] : [])));
    throw new PageError(`${part} is no part of this model that can be cut; parts are such as ${[...parts].slice(0, 3).join(", ")}.`);
  }
  return [{ name, head: Number(number), gain: factor, shift: null }];
}

/** Writes what every part is multiplied with, and what is added, into a player of a program that has cuts. */
export function writeCuts(player: Player, manifest: Manifest, cuts: readonly Cut[]): void {
  for (const [texture, view] of Object.entries(player.program.views)) {
    const [, name, kind] = /^cut\.(.*)\.(gain|shift)$/.exec(texture) ?? [];
    if (name === undefined) continue;
    const { width } = shape(view);
    const values = new Float32Array(4 * width).fill(kind === "gain" ? 1 : 0);
    const across = view.cols / (manifest.activations[name]?.heads ?? 1);
    for (const { head, gain, shift } of cuts.filter((cut) => cut.name === name)) {
      const [from, end] = head === null ? [0, values.length] : [head * across, (head + 1) * across];
      for (let i = from; i < end; i++) values[i] = kind === "gain" ? values[i]! * gain : values[i]! * gain + (shift?.[i] ?? 0);
    }
    player.write(texture, 0, 0, 1, new Uint8Array(values.buffer));
  }
}
