// Parts of a model that are switched off: by name, as `glgpt.Ablate` has them on the desktop.

import { PageError } from "../gl/errors";
import type { Player } from "../gl/player";
import { shape } from "./layout";
import type { Manifest } from "./manifest";

/** An activation, and one of its heads; null: all of it. */
export interface Cut {
  name: string;
  head: number | null;
}

/** What a part means: `h.3.attn.5` a head, `h.3.attn` and `h.3.mlp` what they add, `h.3` both. Throws for others. */
export function resolve(manifest: Manifest, part: string): Cut[] {
  const { activations } = manifest;
  const outs = Object.keys(activations).filter((name) => name.startsWith(`${part}.`) && name.endsWith(".out"));
  if (outs.length) return outs.map((name) => ({ name, head: null }));
  const [, of, number] = /^(.*)\.(\d+)$/.exec(part) ?? [];
  const name = Object.keys(activations).find((n) => n.startsWith(`${of}.`) && activations[n]!.kind === "heads");
  if (name === undefined || Number(number) >= activations[name]!.heads) {
    const parts = new Set(Object.keys(activations).flatMap((n) => (n.includes(".") ? [n.slice(0, n.lastIndexOf("."))] : [])));
    throw new PageError(`${part} is no part of this model that can be cut; parts are such as ${[...parts].slice(0, 3).join(", ")}.`);
  }
  return [{ name, head: Number(number) }];
}

/** Writes what every part is multiplied with into a player of a program that has cuts: 0 where it is cut, else 1. */
export function writeCuts(player: Player, manifest: Manifest, cuts: readonly Cut[]): void {
  for (const [texture, view] of Object.entries(player.program.views)) {
    const [, name] = /^cut\.(.*)\.gain$/.exec(texture) ?? [];
    if (name === undefined) continue;
    const { width } = shape(view);
    const values = new Float32Array(4 * width).fill(1);
    const across = view.cols / (manifest.activations[name]?.heads ?? 1);
    for (const cut of cuts) {
      if (cut.name !== name) continue;
      if (cut.head === null) values.fill(0);
      else values.fill(0, cut.head * across, (cut.head + 1) * across);
    }
    player.write(texture, 0, 0, 1, new Uint8Array(values.buffer));
  }
}
