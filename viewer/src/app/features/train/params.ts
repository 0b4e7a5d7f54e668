// The training settings that a link carries.

import type { Schedule } from "../../../runtime/engine/manifest";
import { param, parseNumber, parseOneOf, parseText, parseWhole, unlessEmpty, type AnyParam } from "../../stores/link";
import { choose, index, offer, preset, schedule, set, shape, stage, STAGES, tokenizer } from "./settings";

/** A parameter that is applied once the sizes on offer are known. Until then, a link retains its text unchanged. */
class LateParam implements AnyParam {
  readonly history = false;
  /** Its text in the link that the page was opened with; null: none. */
  came: string | null = null;

  constructor(private readonly row: AnyParam) {}

  get key(): string {
    return this.row.key;
  }

  read(link: URLSearchParams): void {
    this.came = link.get(this.key);
  }

  write(): string | null {
    return index.value ? this.row.write() : this.came;
  }

  /** Sets the signal from the text that came. */
  apply(): void {
    this.row.read(new URLSearchParams(this.came === null ? {} : { [this.key]: this.came }));
  }
}

const NUMBERS = ["steps", "lr", "min_lr", "warmup", "evalEvery", "sampleEvery"] as const;
const SCHEDULES: readonly Schedule[] = ["cosine", "linear", "constant"];

/** Returns the setting that a training has unless another one is chosen. */
function usual(name: (typeof NUMBERS)[number]): number | undefined {
  return name === "evalEvery" || name === "sampleEvery" ? 50 : offer()?.settings[name];
}

const size = new LateParam(param({ key: "size", signal: preset, parse: parseText, default: () => preset.value }));
const vocabulary = new LateParam(
  param({ key: "vocabulary", signal: tokenizer, parse: parseText, default: () => tokenizer.value }),
);
const dataSet = new LateParam(
  param({ key: "set", signal: set, parse: parseText, format: unlessEmpty, default: () => "" }),
);
const numbers = NUMBERS.map((key) => {
  const signal = schedule[key];
  return new LateParam(
    param({
      key,
      signal,
      parse: (text) => {
        const value = parseNumber(text);
        return value === undefined || value < 0 ? undefined : value;
      },
      format: (value) => (value === usual(key) ? null : String(value)),
      default: () => signal.value,
    }),
  );
});
// `seed` belongs to the text
const seed = new LateParam(
  param({
    key: "train-seed",
    signal: schedule.seed,
    parse: parseWhole,
    format: unlessEmpty,
    default: () => schedule.seed.value,
  }),
);
const decay = new LateParam(
  param({
    key: "schedule",
    signal: shape,
    parse: parseOneOf(SCHEDULES),
    format: (value) => (value === offer()?.settings.schedule ? null : value),
    default: () => shape.value,
  }),
);

/** A link reproduces a training. The visitor's own text is never part of it. */
export const params: readonly AnyParam[] = [
  param({ key: "step", signal: stage, parse: parseOneOf(STAGES), default: () => "data" as const }),
  ...[size, vocabulary, dataSet, ...numbers, seed, decay],
];

/** Applies the settings of the link and returns the data set that it names; ignores what the page does not offer. */
export function applySettings(): string | null {
  const { sizes } = index.value!;
  const found = sizes.find(
    (s) => s.name === (size.came ?? preset.value) && (!vocabulary.came || s.tokenizer === vocabulary.came),
  );
  if (found && (size.came ?? vocabulary.came) !== null) choose(found);
  for (const each of [...numbers, seed, decay]) each.apply();
  const { steps, warmup } = schedule;
  if (!numbers.some(({ key, came }) => key === "warmup" && came !== null) && warmup.value >= steps.value) {
    warmup.value = Math.floor(steps.value / 20); // same default as on the desktop
  }
  return dataSet.came;
}
