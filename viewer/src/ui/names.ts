// What the dotted names mean, for people.

import { parseChange } from "../engine/cuts";

const PARTS: Record<string, string> = {
  embed: "each token's vector plus its position's: where the residual stream begins",
  ln_1: "the stream, normalised: what attention reads",
  "attn.q": "queries: what each token looks for",
  "attn.k": "keys: what each token can be found by",
  "attn.v": "values: what each token hands over",
  "attn.scores": "how well every query matches every key before it",
  "attn.pattern": "softmax of the scores: who takes how much from whom",
  "attn.z": "values, added up by those weights, head beside head",
  "attn.out": "what attention adds to the stream",
  resid_mid: "the stream after attention",
  ln_2: "the stream, normalised: what the MLP reads",
  "mlp.pre": "the MLP's hidden layer before its activation",
  "mlp.act": "the hidden layer after its activation: most of it near zero",
  "mlp.gate": "the gate: how much of each hidden value passes",
  "mlp.up": "the hidden values that the gate multiplies",
  "mlp.out": "what the MLP adds to the stream",
  resid_post: "the stream after the block",
  ln_f: "the last norm",
  logits: "the score of every token as the next one",
  token: "the token chosen last: its id and its logit",
  "wte.weight": "a vector for each token; also turns the last norm into logits",
  "wpe.weight": "a vector for each position",
};

/** The stages of a block that the machine shows, in order: what a pass's label ends with, and the stage's name. */
export const STAGES: readonly (readonly [RegExp, string])[] = [
  [/^attn\.(qkv|q)$/, "QKV"],
  [/^attn\.scores$/, "scores"],
  [/^attn\.z(\.edit)?$/, "mix"],
  [/^resid_mid$/, "residual"],
  [/^mlp\.act$/, "MLP"],
  [/^resid_post$/, "residual"],
];

const PRODUCTS: Record<string, string> = { "attn.c_attn": "to QKV", "attn.c_proj": "mix out", "mlp.c_fc": "MLP in", "mlp.c_proj": "MLP out" };

/** What a pass of a block does, in a word or two. */
export function stageName(label: string): string {
  const rest = parts(label)[1];
  return STAGES.find(([of]) => of.test(rest))?.[1] ?? PRODUCTS[rest] ?? rest.replace(/^.*\./, "");
}

/** A part that can be cut, in words. */
export function cutName(change: string): string {
  const { part, factor, steering, patch, pattern } = parseChange(change);
  if (pattern) return `${partName(part)} looks at ${pattern === "uniform" ? "all alike" : `the ${pattern} token`}`;
  if (patch) return `${partName(part)} at token ${patch.position} as in “${patch.text}”`;
  if (steering) {
    const away = steering.away && ` from “${steering.away}”`;
    return `block ${part.replace(/\D+/g, "")}${away} towards “${steering.towards}” × ${factor}`;
  }
  return `${partName(part)}${factor ? ` × ${factor}` : ""}`;
}

function partName(part: string): string {
  const [block, rest] = parts(part);
  if (block < 0) return `block ${part.replace(/\D+/g, "")}`;
  const head = /^attn\.(\d+)$/.exec(rest)?.[1];
  return head ? `head ${head} of block ${block}` : `${rest === "mlp" ? "the MLP" : "attention"} of block ${block}`;
}

/** A name taken apart: its block (-1: none) and the rest. */
export function parts(name: string): [number, string] {
  const found = /^h\.(\d+)\.(.*)$/.exec(name);
  return found ? [Number(found[1]), found[2]!] : [-1, name];
}

/** The name of a block's part; see `parts`. */
export function inBlock(block: number, part: string): string {
  return `h.${block}.${part}`;
}

export function meaning(name: string): string {
  return PARTS[name] ?? PARTS[parts(name)[1]] ?? "";
}
