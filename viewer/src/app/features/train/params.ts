// The training settings in a link to the page.

import { signal } from "@preact/signals";
import type { Schedule } from "../../../runtime/engine/manifest";
import { param, parseNumber, parseOneOf, parseText, parseWhole, unlessEmpty, type AnyParam } from "../../stores/link";
import { STAGES, type SettingsStore } from "./settings";

/**
 * A parameter of a link that is applied after the list of model sizes has loaded. Until then, the page copies the
 * parameter's text into new links unchanged.
 */
class LateParam implements AnyParam {
  readonly history = false;
  /** The parameter's text in the link that the page was opened with; null: the link lacks the parameter. */
  readonly came = signal<string | null>(null);

  constructor(
    private readonly settings: SettingsStore,
    private readonly row: AnyParam,
  ) {}

  get key(): string {
    return this.row.key;
  }

  read(link: URLSearchParams): void {
    this.came.value = link.get(this.key);
  }

  write(): string | null {
    return this.settings.index.value ? this.row.write() : this.came.value;
  }

  /** Sets the setting's signal from the parameter's text in the link. */
  apply(): void {
    const came = this.came.peek();
    this.row.read(new URLSearchParams(came === null ? {} : { [this.key]: came }));
  }
}

const NUMBERS = ["steps", "lr", "min_lr", "warmup", "evalEvery", "sampleEvery"] as const;
const RATES: readonly string[] = ["lr", "min_lr"]; // the settings that are not integers
const SCHEDULES: readonly Schedule[] = ["cosine", "linear", "constant"];

/** Returns the default value of a setting; undefined before the list of model sizes has loaded. */
function usual(settings: SettingsStore, name: (typeof NUMBERS)[number]): number | undefined {
  return name === "evalEvery" || name === "sampleEvery" ? 50 : settings.offer()?.settings[name];
}

/**
 * The settings as parameters of a link. Such a link reproduces a training on one of the page's data sets. A link never
 * contains the visitor's own text.
 */
export class TrainParams {
  private readonly size: LateParam;
  private readonly vocabulary: LateParam;
  private readonly dataSet: LateParam;
  private readonly schedule: readonly LateParam[];
  readonly all: readonly AnyParam[];

  constructor(private readonly settings: SettingsStore) {
    const { preset, tokenizer, set, schedule, shape, stage } = settings;
    const late = (row: AnyParam) => new LateParam(settings, row);
    this.size = late(param({ key: "size", signal: preset, parse: parseText, default: () => preset.value }));
    this.vocabulary = late(
      param({ key: "vocabulary", signal: tokenizer, parse: parseText, default: () => tokenizer.value }),
    );
    this.dataSet = late(param({ key: "set", signal: set, parse: parseText, format: unlessEmpty, default: () => "" }));
    const numbers = NUMBERS.map((key) => {
      const signal = schedule[key];
      return param({
        key,
        signal,
        parse: (text) => {
          const value = parseNumber(text);
          if (value === undefined || value < 0) return undefined;
          return RATES.includes(key) ? value : parseWhole(text);
        },
        format: (value) => (value === usual(settings, key) ? null : String(value)),
        default: () => signal.value,
      });
    });
    const seed = param({
      key: "train-seed", // the key `seed` is that of the generated text's seed
      signal: schedule.seed,
      parse: parseWhole,
      format: unlessEmpty,
      default: () => schedule.seed.value,
    });
    const decay = param({
      key: "schedule",
      signal: shape,
      parse: parseOneOf(SCHEDULES),
      format: (value) => (value === settings.offer()?.settings.schedule ? null : value),
      default: () => shape.value,
    });
    this.schedule = [...numbers, seed, decay].map(late);
    this.all = [
      param({ key: "step", signal: stage, parse: parseOneOf(STAGES), default: () => "data" as const }),
      ...[this.size, this.vocabulary, this.dataSet, ...this.schedule],
    ];
  }

  /**
   * Applies the settings of the link; ignores a size or tokenizer that the page does not offer. Returns the name of the
   * link's data set, even if the page does not offer this data set; null if the link has no data set.
   */
  apply(): string | null {
    const { size, vocabulary, settings } = this;
    const [name, tokens] = [size.came.peek(), vocabulary.came.peek()];
    const found = settings.index.value!.sizes.find(
      (s) => s.name === (name ?? settings.preset.value) && (!tokens || s.tokenizer === tokens),
    );
    if (found && (name ?? tokens) !== null) settings.choose(found);
    for (const each of this.schedule) each.apply();
    const { steps, warmup } = settings.schedule;
    if (
      !this.schedule.some(({ key, came }) => key === "warmup" && came.peek() !== null) &&
      warmup.value >= steps.value
    ) {
      // the warmup must be shorter than the training; the desktop has the same default
      warmup.value = Math.floor(steps.value / 20);
    }
    return this.dataSet.came.peek();
  }
}
