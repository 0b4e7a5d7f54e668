// The reference run of the desktop, played again here.

import { parseReference } from "./manifest";
import type { Model } from "./model";
import { Names } from "./names";
import { floatsFrom } from "./base64";
import type { Values } from "./capture";

export interface Parity {
  pass: boolean;
  /** Greatest absolute difference of the logits, and the greatest multiple of the tolerance. */
  maxError: number;
  ofTolerance: number;
  greedyEqual: boolean;
  /** The first intermediate beyond its tolerance, with both values where they differ most. */
  firstApart: { name: string; error: number; here: number; desktop: number } | null;
  desktop: string;
  atol: number;
  rtol: number;
  names: number;
}

export async function parity(model: Model): Promise<Parity> {
  const file = model.manifest.reference;
  const reference = parseReference(await model.loader.json(file), file);
  const { atol, rtol, ids } = reference;
  const names = [...Names.of(model.manifest).activations.keys()].filter((name) => name in reference.activations);
  const found = await model.activations(ids, [...names, "logits"]);
  const logits = found.get("logits")!;
  const from = reference.logits.first * model.manifest.config.vocab_size;
  const worst = furthest(logits.data.subarray(from), floatsFrom(reference.logits.data), atol, rtol);
  let firstApart: Parity["firstApart"] = null;
  for (const name of names) {
    const off = furthest(lastRow(found.get(name)!), floatsFrom(reference.activations[name]!), atol, rtol);
    if (off.ratio > 1) {
      firstApart = { name, error: off.error, here: off.here, desktop: off.there };
      break;
    }
  }
  const greedy: number[] = [];
  for await (const token of model.generate(ids, { tokens: reference.greedy.length, temperature: 0 }))
    greedy.push(token.id);
  const greedyEqual = greedy.join() === reference.greedy.join();
  return {
    pass: worst.ratio <= 1 && greedyEqual && firstApart === null,
    maxError: worst.error,
    ofTolerance: worst.ratio,
    greedyEqual,
    firstApart,
    desktop: reference.device,
    atol,
    rtol,
    names: names.length,
  };
}

/** Where two arrays differ most, in multiples of atol + rtol |there|. */
export function furthest(here: Float32Array, there: Float32Array, atol: number, rtol: number) {
  const worst = { ratio: 0, error: 0, here: 0, there: 0 };
  if (here.length !== there.length) return { ...worst, ratio: Infinity, error: Infinity };
  for (let i = 0; i < here.length; i++) {
    const a = here[i]!;
    const b = there[i]!;
    if (a === b) continue;
    const error = Math.abs(a - b);
    const ratio = error / (atol + rtol * Math.abs(b));
    if (!(ratio <= worst.ratio))
      Object.assign(worst, { ratio: Number.isNaN(ratio) ? Infinity : ratio, error, here: a, there: b });
  }
  return worst;
}

function lastRow(values: Values): Float32Array {
  const [heads, total, width] = values.shape.length === 3 ? values.shape : [1, ...values.shape];
  const out = new Float32Array(heads! * width!);
  for (let h = 0; h < heads!; h++) {
    const at = (h * total! + total! - 1) * width!;
    out.set(values.data.subarray(at, at + width!), h * width!);
  }
  return out;
}
