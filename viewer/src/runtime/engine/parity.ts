// Repeats the desktop's reference run in the page and compares the results.

import { must } from "../gl/errors";
import { floatsFrom } from "./base64";
import type { Values } from "./capture";
import { parseReference } from "./manifest";
import type { Model } from "./model";
import { Names } from "./names";
import { samplingOptions } from "./sampling";
import { klDivergence, measure, ties, type Tolerance } from "./tolerance";

export interface Parity {
  pass: boolean;
  /**
   * `maxError`: the error of the logit with the greatest excess. An excess is an error as a multiple of the tolerance.
   * `ofTolerance`: the excess of all logits (`Measured.excess` in tolerance.ts).
   */
  maxError: number;
  ofTolerance: number;
  /** Mean KL divergence of the logits from the desktop's, in nats. */
  kl: number;
  greedyEqual: boolean;
  /** True if, where the greedy texts first differ, the page's and the desktop's token are equally likely, or nearly. */
  tie: boolean;
  /**
   * The first activation beyond the tolerance, with the page's and the desktop's value where the excess is greatest.
   */
  firstApart: { name: string; error: number; here: number; desktop: number } | null;
  /** The greatest excess among the activations before `firstApart`, or among all if `firstApart` is null. */
  greatest: number;
  desktop: string;
  tolerance: Tolerance;
  names: number;
}

export async function parity(model: Model): Promise<Parity> {
  const file = must(model.manifest.reference, "a reference run of the desktop");
  const reference = parseReference(await model.loader.json(file), file);
  const { tolerance, ids } = reference;
  const names = [...Names.of(model.manifest).activations.keys()].filter((name) => name in reference.activations);
  const found = await model.activations.read(ids, [...names, "logits"]);
  const vocab = model.manifest.config.vocab_size;
  const here = found.get("logits")!.data.subarray(reference.logits.first * vocab);
  const there = floatsFrom(reference.logits.data);
  const worst = measure(here, there, vocab, tolerance);
  const kl = worst.excess < Infinity ? klDivergence(there, here, vocab) : NaN;
  let firstApart: Parity["firstApart"] = null;
  let greatest = 0;
  for (const name of names) {
    const values = lastRow(found.get(name)!);
    const off = measure(values, floatsFrom(reference.activations[name]!), values.length, tolerance);
    if (!(off.excess <= 1)) {
      firstApart = { name, error: off.error, here: off.here, desktop: off.there };
      break;
    }
    greatest = Math.max(greatest, off.excess);
  }
  const greedy: number[] = [];
  for await (const token of model.generator.generate(ids, {
    tokens: reference.greedy.length,
    sampling: samplingOptions({ temperature: 0 }),
  }))
    greedy.push(token.id);
  const same = reference.greedy.findIndex((id, i) => greedy[i] !== id);
  const greedyEqual = same < 0;
  const tie = !greedyEqual && same < greedy.length && (await tied(model, reference, same, greedy[same]!));
  return {
    pass: worst.excess <= 1 && kl <= tolerance.kl && (greedyEqual || tie) && firstApart === null,
    maxError: worst.error,
    ofTolerance: worst.excess,
    kl,
    greedyEqual,
    tie,
    firstApart,
    greatest,
    desktop: reference.device,
    tolerance,
    names: names.length,
  };
}

/** True if, after `same` equal tokens, the page's greedy token `own` ties with the desktop's (see `ties`). */
async function tied(model: Model, reference: ReturnType<typeof parseReference>, same: number, own: number) {
  const text = [...reference.ids, ...reference.greedy.slice(0, same)];
  const { data } = (await model.activations.read(text, ["logits"])).get("logits")!;
  return ties(data.subarray(-model.manifest.config.vocab_size), own, reference.greedy[same]!, reference.tolerance);
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
