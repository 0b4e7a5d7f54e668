// The prompt and the settings of the page's main text. Every link to the page has them.

import { batch, computed, signal } from "@preact/signals";
import type { Used } from "../../api";
import { samplingDefaults } from "../../runtime/engine/sampling-defaults";
import { param, parseNumber, parseText, parseWhole, parseWithin, unlessEmpty } from "./link";
import { engine, models } from "./model";

/** The maximum number of tokens to generate at once. */
export const MAX_TOKENS = 4096;

/** Returns the default settings of a text. The page's recorded text has these settings too. */
function defaults() {
  const { temperature, topK, topP, minP } = samplingDefaults(models.ready?.manifest.sampling);
  return {
    tokens: 120,
    temperature,
    topK: topK ?? 0,
    topP: topP ?? 1,
    minP: minP ?? 0,
    repetitionPenalty: 1,
    stop: "",
  };
}

type Defaults = ReturnType<typeof defaults>;

/** The settings that a model may recommend, and their keys in links. */
const KEYS = { temperature: "temperature", topK: "k", topP: "p", minP: "minp" } as const;

class SettingsStore {
  readonly prompt = signal("");
  readonly tokens = signal(0);
  readonly temperature = signal(0);
  readonly topK = signal(0);
  readonly topP = signal(0);
  readonly minP = signal(0);
  readonly repetitionPenalty = signal(1);
  readonly seed = signal(0);
  readonly stop = signal("");
  /** True if tokens are guessed from the text, and several guesses are checked at once. The result is the same. */
  readonly speculate = signal(false);
  /** The number of tokens in the prompt field. */
  readonly promptLength = computed(() => (models.ready ? this.knownIds().length : 0));
  private recommended = defaults(); // the recommended settings of the model in use
  /** The prompt and the number of tokens that were last used with each model. */
  private readonly asked = new Map<Used, { prompt: string; tokens: number }>();

  /** Returns the settings that determine the text. */
  get all() {
    const { prompt, tokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop } = this;
    return { prompt, tokens, temperature, topK, topP, minP, repetitionPenalty, seed, stop };
  }

  /** Returns the values of `all`. */
  values() {
    return Object.values(this.all).map((setting) => setting.value);
  }

  /** Returns a function that restores the current values. */
  saved(): () => void {
    const { prompt, stop, ...numbers } = this.all;
    const texts = [prompt, stop].map((each) => [each, each.value] as const);
    const values = Object.values(numbers).map((each) => [each, each.value] as const);
    return () => {
      for (const [each, value] of texts) each.value = value;
      for (const [each, value] of values) each.value = value;
    };
  }

  /** True if all settings but the prompt and the seed are the recommended ones. */
  get areRecommended(): boolean {
    return Object.entries(defaults()).every(([key, value]) => this[key as keyof Defaults].value === value);
  }

  /** Returns the initial prompt: the page's first, or three ids without a tokenizer; "" until a model can run. */
  opening(): string {
    const model = models.ready;
    if (!model) return "";
    return model.tokenizer ? this.shorter(model.manifest.prompts[0]?.text ?? "") : "1 2 3";
  }

  /** Clamps the number of tokens of a link to the range from 1 to `MAX_TOKENS`. */
  fit(): void {
    this.tokens.value = Math.min(Math.max(1, Math.floor(this.tokens.value)), MAX_TOKENS);
  }

  /**
   * Adapts the settings after a switch from the model `before` to the model `used`. Restores the prompt and the length
   * that were last used with `used`. If there are none, keeps the length, and shortens the prompt to half the context.
   * A sampling setting that has the value recommended for `before` gets the value recommended for `used`.
   */
  adopt(before: Used, used: Used): void {
    this.asked.set(before, { prompt: this.prompt.value, tokens: this.tokens.value });
    batch(() => {
      const asked = this.asked.get(used);
      this.prompt.value = asked?.prompt ?? this.shorter(this.prompt.value);
      this.tokens.value = asked?.tokens ?? this.tokens.value;
      this.useRecommended();
    });
  }

  /** Sets the sampling settings that the model recommends, unless the visitor or the link (`given`) has set them. */
  useRecommended(given: (key: string) => boolean = () => false): void {
    const recommended = defaults();
    for (const key of Object.keys(KEYS) as (keyof typeof KEYS)[]) {
      if (!given(KEYS[key]) && this[key].value === this.recommended[key]) this[key].value = recommended[key];
    }
    this.recommended = recommended;
  }

  /** Returns the sampling options of the settings. */
  sampling() {
    const { temperature, topK, topP, minP, repetitionPenalty: penalty, seed, stop } = this;
    return {
      temperature: temperature.value,
      topK: topK.value || null,
      topP: topP.value < 1 ? topP.value : null,
      minP: minP.value || null,
      // split servers do not support a penalty
      repetitionPenalty: penalty.value === 1 || engine().model.split ? null : penalty.value,
      seed: seed.value,
      ...(stop.value ? { stop: stop.value } : {}),
    };
  }

  /** Draws another seed, because the same seed would give the same text. */
  reseed(): void {
    this.seed.value = Math.floor(Math.random() * 1e6);
  }

  /** Returns the tokens of the prompt. Throws if the vocabulary lacks a character of the prompt. */
  promptIds(): number[] {
    const { model } = engine();
    if (model.tokenizer) return model.promptIds(this.prompt.value);
    return (this.prompt.value.match(/\d+/g) ?? []).map(Number);
  }

  /** Returns the tokens of the prompt, or none if the vocabulary lacks a character; generation reports that error. */
  knownIds(): number[] {
    return known(() => this.promptIds());
  }

  /** Returns as many last lines of a prompt as fit half the context, so that new text fits in the other half. */
  private shorter(text: string): string {
    const glgpt = engine();
    const ids = known(() => glgpt.encode(text));
    const most = Math.max(1, Math.floor(glgpt.model.manifest.config.n_positions / 2));
    return ids.length > most ? glgpt.decode(ids.slice(-most)).replace(/^[^\n]*\n+(?=.)/, "") : text;
  }
}

/** Returns the ids, or none if the vocabulary lacks a character of the text. */
function known(ids: () => number[]): number[] {
  try {
    return ids();
  } catch {
    return [];
  }
}

export const settings = new SettingsStore();

const text = { history: false }; // going back in the history changes the view, not the text
const unlessZero = (value: number | undefined) => value || undefined;

/** The settings of the main text, as parameters of every link. */
export const TEXT_PARAMS = [
  param({ ...text, key: "prompt", signal: settings.prompt, parse: parseText, default: () => settings.opening() }),
  param({ ...text, key: "tokens", signal: settings.tokens, parse: parseNumber, default: () => defaults().tokens }),
  param({
    ...text,
    key: KEYS.temperature,
    signal: settings.temperature,
    parse: parseWithin(100),
    default: () => defaults().temperature,
  }),
  param({ ...text, key: KEYS.topK, signal: settings.topK, parse: parseWhole, default: () => defaults().topK }),
  param({
    ...text,
    key: KEYS.topP,
    signal: settings.topP,
    parse: (value) => unlessZero(parseWithin(1)(value)),
    default: () => defaults().topP,
  }),
  param({
    ...text,
    key: KEYS.minP,
    signal: settings.minP,
    parse: parseWithin(1),
    format: (value) => (value === defaults().minP ? null : String(value)),
    default: () => defaults().minP,
  }),
  param({
    ...text,
    key: "penalty",
    signal: settings.repetitionPenalty,
    parse: (value) => unlessZero(parseWithin(100)(value)),
    format: (value) => (value === 1 ? null : String(value)),
    default: () => defaults().repetitionPenalty,
  }),
  param({ ...text, key: "seed", signal: settings.seed, parse: parseWhole, default: () => 1 }),
  param({
    ...text,
    key: "stop",
    signal: settings.stop,
    parse: parseText,
    format: unlessEmpty,
    default: () => defaults().stop,
  }),
];
