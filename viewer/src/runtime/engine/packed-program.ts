// Unpacks packed programs, which take a quarter of the bytes of plain ones. glgpt/page/player/packed.py writes packed
// programs and describes their format.

import type { PackedDocument } from "../generated/packed";
import { must } from "../gl/errors";
import type { Pass, Program } from "../gl/program";

export type Packed = Omit<PackedDocument, "schema" | "views"> & Pick<Program, "schema" | "views">;

type Kinds = PackedDocument["kinds"];
type Steps = PackedDocument["entries"][number]["passes"];

/** Returns the unpacked program. `sources` are the lines that the shaders of all programs share. */
export function unpacked(packed: Packed, sources: readonly string[]): Program {
  const { schema, scalars, views, kinds } = packed;
  const lines = [...sources, ...packed.lines];
  const textures = packed.textures.map(([name, width, height, layers, format, role]) => {
    return [name, { name, width, height, layers, format, role }] as const;
  });
  const shaders = Object.entries(packed.shaders).map(([name, runs]) => [name, textOf(runs, lines)] as const);
  const entries = packed.entries.map((entry) => [entry.name, { ...entry, passes: passesOf(entry.passes, kinds) }]);
  return {
    schema,
    scalars,
    views,
    textures: Object.fromEntries(textures),
    shaders: Object.fromEntries(shaders),
    entries: Object.fromEntries(entries) as Program["entries"],
  };
}

/** Returns a text from runs of lines. Each run is two numbers: the index of its first line and its number of lines. */
export function textOf(runs: readonly number[], lines: readonly string[]): string {
  const text: string[] = [];
  for (let i = 0; i < runs.length; i += 2) text.push(...lines.slice(runs[i], runs[i]! + runs[i + 1]!));
  return text.join("\n");
}

function passesOf(steps: Steps, kinds: Kinds): Pass[] {
  const passes: Pass[] = [];
  let block = "";
  for (const step of steps) {
    if (typeof step === "number") {
      block = String(step);
      continue;
    }
    const [number, ...short] = step;
    const [label, ...names] = short.map((name) => name.replace("~", block));
    const kind = must(kinds[number], "a kind");
    const [shader, samplers, targets, viewport, row, flops, nbytes, slices, clear, first_column, keys] = kind;
    const outputs = names.slice(samplers.length);
    passes.push({
      label: label!,
      shader,
      inputs: samplers.map((sampler, i) => [sampler, names[i]!]),
      outputs: targets.map(([output, layer]) => [outputs[output]!, layer]),
      viewport,
      row,
      flops,
      nbytes,
      slices,
      clear,
      first_column,
      keys,
    });
  }
  return passes;
}
