// The text: its prompt and settings, its tokens, and generating them.

import { batch, computed, signal, type Signal } from "@preact/signals";
import type { Continuation, Generated, Used } from "../../api";
import type { Manifest, Recorded } from "../../runtime/engine/manifest";
import { probabilities } from "../../runtime/engine/probabilities";
import type { Candidate } from "../../runtime/engine/sampling";
import { reason } from "../../runtime/gl/errors";
import { param, parseNumber, parseText, parseWhole, parseWithin, unlessEmpty } from "./link";
import { Meter } from "./meter";
import { engine, models } from "./model";

export interface Tok {
  id: number;
  text: string;
  label: string;
  given: boolean;
  p?: number;
  /** The probability with which the sampler drew it; absent if it was given. */
  sampled?: number;
  top?: readonly Candidate[];
}

/** The maximum of tokens to generate at once. */
export const MAX_TOKENS = 4096;
const ALTERNATIVES = 8; // per token
const FRAME_MS = 40; // minimum ms between two updates of the text

class GenerationStore {
  /** The recorded generation, shown until the model can run; `layers` and `heads` are its attention grid's size. */
  readonly recorded = signal<(Recorded & { layers: number; heads: number; about: Manifest }) | null>(null);
  /** The manifest of the model, or of its recording while it loads. */
  readonly manifest = computed(() => models.ready?.manifest ?? this.recorded.value?.about);
  readonly prompt = signal("");
  readonly settings = {
    tokens: signal(0),
    temperature: signal(0),
    topK: signal(0),
    topP: signal(0),
    minP: signal(0),
    repetitionPenalty: signal(1),
    seed: signal(0),
    stop: signal(""),
  };
  /** True if tokens are guessed from the text, and several checked at once. */
  readonly speculate = signal(false);
  readonly tokens = signal<Tok[]>([]);
  readonly running = signal(false);
  readonly note = signal("");
  /** Why the latest generation ended; `note` has the error of one that failed. */
  ended: Generated["stopped"] | "failed" = "tokens";
  readonly speeds = signal<{ prefill: number; decode: number; given: number } | null>(null);
  readonly chosen = signal<number | null>(null);
  /** True while alternatives are computed that take more than a second. */
  readonly weighing = signal(false);
  /** The update of the text that comes next during a generation, with the number of its tokens in the context. */
  readonly upcoming = signal<{ read: number } | null>(null);
  /**
   * Continuations side by side (null: not requested), their speed in tokens per second, and a status or error message.
   */
  readonly several = signal<readonly Continuation[] | null>(null);
  readonly severalRate = signal(0);
  readonly severalNote = signal("");

  /** The number of tokens of the prompt in its field. */
  readonly promptLength = computed(() => (models.ready ? this.known(() => this.promptIds()).length : 0));
  readonly ids = computed(() => this.tokens.value.map((t) => t.id));
  /** The part of the text that fits the model's context: its first position, its tokens and their ids. */
  readonly readFrom = computed(() => models.ready?.context.readFrom(this.tokens.value.length) ?? 0);
  readonly read = computed(() => models.ready?.context.read(this.tokens.value) ?? []);
  readonly readIds = computed(() => this.read.value.map((t) => t.id));
  /** The number of continuations side by side; 0: the model in its current state can only write one text at a time. */
  readonly textsAtOnce = computed(() => models.ready?.batch.texts ?? 0);

  private readonly meter = new Meter(0.03, FRAME_MS, 1000); // rendering slows generation down on software drivers
  private readonly labels = new Map<number, string>(); // of the recorded tokens
  private readonly texts = new Map<Used, { prompt: string; tokens: number }>(); // the prompt and length for each model
  private abort: AbortController | null = null;
  private repeat: () => Promise<void> = () => this.write();
  private restoreAsked: () => void = () => {}; // restores the prompt and the settings of the continuations

  /** Shows the recorded generation while the model loads. */
  showRecorded(document: Recorded, manifest: Manifest): void {
    const { n_layer, n_head } = manifest.config;
    document.tokens.forEach((t) => [t, ...(t.top ?? [])].forEach(({ id, label }) => this.labels.set(id, label)));
    batch(() => {
      this.recorded.value = { ...document, layers: n_layer, heads: n_head, about: manifest };
      this.tokens.value = document.tokens.map((t, i) => ({ ...t, given: i < document.given }));
    });
  }

  /**
   * Keeps the recorded text, if the prompt and the settings are the recorded ones. Returns true if it did: nothing
   * needs to be generated then.
   */
  keepRecorded(): boolean {
    const found = this.recorded.value;
    const given = this.known(() => this.promptIds());
    const same =
      found?.given === given.length &&
      given.every((id, i) => id === found.tokens[i]!.id) &&
      settings.seed.value === found.seed &&
      Object.entries(DEFAULTS).every(([key, value]) => settings[key as keyof typeof DEFAULTS].value === value);
    if (same) this.recorded.value = null; // `tokens` holds its text already
    return same;
  }

  /** Returns the initial prompt: the export's first, or a few ids without a tokenizer; "" until the model can run. */
  opening(): string {
    const model = models.ready;
    if (!model) return "";
    return model.tokenizer ? this.shorter(model.manifest.prompts[0]?.text ?? "") : "1 2 3";
  }

  /** Restricts the settings of a link to what can be generated. */
  fit(): void {
    const { tokens } = this.settings;
    tokens.value = Math.min(Math.max(1, Math.floor(tokens.value)), MAX_TOKENS);
  }

  /** Shows the text of the model that replaced `before`; the caller then generates it. */
  adopt(before: Used, used: Used): void {
    const { tokens } = this.settings;
    this.texts.set(before, { prompt: this.prompt.value, tokens: tokens.value });
    batch(() => {
      const asked = this.texts.get(used);
      this.prompt.value = asked?.prompt ?? this.shorter(this.prompt.value);
      tokens.value = asked?.tokens ?? tokens.value;
      this.tokens.value = [];
      this.several.value = this.chosen.value = this.speeds.value = null;
    });
  }

  label(id: number): string {
    const model = models.ready;
    if (!model) return this.labels.get(id) ?? String(id);
    return model.tokenizer?.label(id) ?? String(id);
  }

  /** Returns the sampling options of the settings. */
  sampling() {
    const { temperature, topK, topP, minP, repetitionPenalty: penalty, seed, stop } = this.settings;
    return {
      temperature: temperature.value,
      topK: topK.value || null,
      topP: topP.value < 1 ? topP.value : null,
      minP: minP.value || null,
      // no split server supports it
      repetitionPenalty: penalty.value === 1 || engine().model.split ? null : penalty.value,
      seed: seed.value,
      ...(stop.value ? { stop: stop.value } : {}),
    };
  }

  /** Draws another seed: the same one would give the same text. */
  reseed(): void {
    this.settings.seed.value = Math.floor(Math.random() * 1e6);
  }

  /** Generates text after the prompt. */
  async write(): Promise<void> {
    this.repeat = () => this.write();
    await this.attempt(async () => {
      const list = this.promptIds();
      engine().model.check(list);
      const start = this.given(list);
      this.tokens.value = [...start, ...this.recordedAfter(start)];
      await this.go(this.settings.tokens.value, start.length);
    });
  }

  /**
   * Shows the text of `ids` and continues it by up to `count` tokens. Tokens that the text begins with already keep
   * their alternatives. `again` generates the text another time, after a change of the model.
   */
  async continueIds(ids: readonly number[], count: number, again: () => Promise<void>): Promise<void> {
    await this.stop();
    engine().model.check(ids);
    const before = this.tokens.value;
    const same = ids.findIndex((id, i) => id !== before[i]?.id);
    const kept = same < 0 ? before.slice(0, ids.length) : before.slice(0, same);
    batch(() => {
      this.recorded.value = null;
      this.tokens.value = [...kept, ...this.given(ids).slice(kept.length)];
    });
    this.repeat = again;
    await this.go(count, ids.length);
  }

  /** Shows a text that was written before. */
  async show(tokens: readonly Tok[]): Promise<void> {
    await this.stop();
    batch(() => {
      this.recorded.value = this.chosen.value = this.speeds.value = null;
      this.tokens.value = [...tokens];
    });
  }

  /** Returns the tokens of a prompt and of what the model once wrote after it, whose probabilities `weigh` computes. */
  toksOf(prompt: readonly number[], written: readonly number[]): Tok[] {
    return this.given([...prompt, ...written]).map((tok, i) => ({ ...tok, given: i < prompt.length }));
  }

  /** Generates the text another time, as it was requested. */
  async again(): Promise<void> {
    await this.repeat();
  }

  /** Generates `count` tokens from position `from` on (default: the end); `instead` is then the token at `from`. */
  async go(count: number, from?: number, instead?: number): Promise<void> {
    await this.attempt(async () => {
      await this.stop();
      let kept = from === undefined ? this.tokens.value : this.tokens.value.slice(0, from);
      if (instead !== undefined) {
        const was = this.tokens.value[from ?? 0];
        const weighed = was?.top?.find((c) => c.id === instead);
        const text = engine().decode([instead]);
        kept = [
          ...kept,
          {
            text,
            label: this.label(instead),
            given: false,
            ...(was?.top ? { top: was.top } : {}),
            ...weighed,
            id: instead,
          },
        ];
      }
      if (!kept.length) return;
      batch(() => {
        this.tokens.value = [...kept, ...this.recordedAfter(kept)];
        this.chosen.value = null;
        this.running.value = true;
        this.note.value = "";
      });
      await this.stream(count, kept);
    });
  }

  /** Stops a running generation. */
  async stop(): Promise<void> {
    while (this.running.value) {
      this.abort?.abort(); // also a generation that began during the wait: the last request wins
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  private async stream(count: number, kept: Tok[]): Promise<void> {
    const list = [...kept];
    const held = engine().model.cache.held(kept.map((t) => t.id)); // tokens in the KV cache, which need no prefill
    this.abort = new AbortController();
    let waiting = false;
    this.meter.rest();
    const shown = () => {
      waiting = false;
      this.tokens.value = [...list, ...this.recordedAfter(list)];
    };
    try {
      const result = await engine().generate({
        ids: kept.map((t) => t.id),
        tokens: count,
        drawn: kept.filter((t) => !t.given).length,
        ...this.sampling(),
        alternatives: ALTERNATIVES,
        speculate: this.speculate.value,
        signal: this.abort.signal,
        onToken: (token) => {
          list.push({ ...token, label: this.label(token.id), given: false });
          if (!this.meter.due(token.more) || waiting) return;
          waiting = true;
          this.upcoming.value = { read: list.length - engine().model.context.readFrom(list.length) };
          requestAnimationFrame(shown);
        },
      });
      const decoded = result.ids.length - 1;
      if (result.stopped === "text") truncate(list, kept.length, result.text.length);
      this.speeds.value =
        decoded < 0
          ? null
          : {
              given: kept.length - held,
              prefill: result.prefillMs,
              decode: decoded > 0 ? (1000 * decoded) / result.decodeMs : 0,
            };
      const ends = {
        eos: "The model ended the text.",
        text: "Stopped at the stop text.",
        aborted: "Stopped.",
        tokens: "",
      };
      this.note.value = ends[result.stopped];
      this.ended = result.stopped;
    } finally {
      this.recorded.value = null; // replaced by the model's own text
      shown();
      this.running.value = false;
      this.abort = null;
    }
  }

  /** Returns the rest of the recorded text if it begins with these tokens: it is shown until the model catches up. */
  private recordedAfter(list: readonly Tok[]): readonly Tok[] {
    const all = this.recorded.value?.tokens ?? [];
    return list.every((tok, i) => tok.id === all[i]?.id)
      ? all.slice(list.length).map((tok) => ({ ...tok, given: false }))
      : [];
  }

  /** Generates several continuations of the prompt; the text itself stays. */
  async writeSeveral(): Promise<void> {
    await this.stop();
    this.abort = new AbortController();
    const { signal } = this.abort;
    const restore = [this.prompt, ...Object.values(this.settings)].map((setting: Signal<string | number>) => {
      const { value } = setting;
      return () => (setting.value = value);
    });
    batch(() => {
      this.running.value = true;
      this.several.value = [];
      this.restoreAsked = () => restore.forEach((set) => set());
      this.severalRate.value = 0;
      this.severalNote.value = "Preparing…";
    });
    this.meter.rest();
    let [begun, waiting] = [0, false];
    const show = (texts: readonly Continuation[]) => {
      waiting = false;
      this.several.value = texts.map((text) => ({ ...text }));
    };
    try {
      const texts = await engine().continuations({
        ids: this.promptIds(),
        tokens: this.settings.tokens.value,
        ...this.sampling(),
        signal,
        onCompiled: (compiled, shaders) => (this.severalNote.value = `Compiling shaders ${compiled} of ${shaders}`),
        onTexts: (texts) => {
          if (!begun) [begun, this.severalNote.value] = [performance.now(), "Writing…"];
          if (!this.meter.due() || waiting) return;
          waiting = true;
          requestAnimationFrame(() => show(texts));
        },
      });
      // first tokens come from the prefill
      const after = texts.reduce((sum, { ids }) => sum + Math.max(0, ids.length - 1), 0);
      this.severalRate.value = after ? (1000 * after) / (performance.now() - begun) : 0;
      this.severalNote.value = signal.aborted ? "Stopped." : "";
      show(texts);
    } catch (error) {
      this.severalNote.value = reason(error);
    } finally {
      this.running.value = false;
      this.abort = null;
    }
  }

  /** Generates one of the continuations again as the text, with alternatives and probabilities. */
  async readContinuation(seed: number): Promise<void> {
    batch(() => {
      this.restoreAsked();
      this.settings.seed.value = seed;
    });
    await this.write();
  }

  /** Removes the continuations and frees their memory on the device. */
  closeSeveral(): void {
    this.several.value = null;
    void engine().borrow((model) => {
      model.batch.close();
      return Promise.resolve();
    });
  }

  /** Computes alternatives for a token that is pointed at and has none: of the prompt, or of a stored answer. */
  async weigh(): Promise<void> {
    const [at, list] = [this.chosen.value, this.tokens.value];
    const tok = at ? list[at] : undefined; // the first token has no context to predict it from
    if (!at || !tok || tok.top || this.running.value) return;
    const clock = setTimeout(() => (this.weighing.value = true), 1000);
    await engine()
      .borrow(async (model) => {
        if (this.chosen.value !== at || this.tokens.value !== list) return;
        const { p, top } = await probabilities(
          model,
          list.map((t) => t.id),
          at,
          ALTERNATIVES,
        );
        if (p !== undefined && top)
          this.tokens.value = this.tokens.value.map((t) => (t === tok ? { ...t, p, top } : t));
      })
      .catch((error: unknown) => (this.note.value = reason(error)))
      .finally(() => {
        clearTimeout(clock);
        this.weighing.value = false;
      });
  }

  private given(list: readonly number[]): Tok[] {
    const decoder = engine().model.tokenizer?.stream();
    return list.map((id) => ({ id, text: decoder ? decoder.push(id) : ` ${id}`, label: this.label(id), given: true }));
  }

  private promptIds(): number[] {
    const { model } = engine();
    if (model.tokenizer) return model.promptIds(this.prompt.value);
    return (this.prompt.value.match(/\d+/g) ?? []).map(Number);
  }

  /** Returns the ids, or none if the vocabulary lacks a character of the text: generating then reports it. */
  private known(ids: () => number[]): number[] {
    try {
      return ids();
    } catch {
      return [];
    }
  }

  /** Returns the last lines of a prompt that fit half the context, so that new text fits in the other half. */
  private shorter(text: string): string {
    const glgpt = engine();
    const ids = this.known(() => glgpt.encode(text));
    const most = Math.max(1, Math.floor(glgpt.model.manifest.config.n_positions / 2));
    return ids.length > most ? glgpt.decode(ids.slice(-most)).replace(/^[^\n]*\n+(?=.)/, "") : text;
  }

  private async attempt(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.running.value = false;
      this.ended = "failed";
      this.note.value = reason(error);
    }
  }
}

/** Truncates the text after token `from` to `length` characters, to hide the stop text. */
function truncate(list: Tok[], from: number, length: number): void {
  let at = from;
  for (let left = length; at < list.length && left > 0; at++) {
    const tok = list[at]!;
    if (tok.text.length > left) list[at] = { ...tok, text: tok.text.slice(0, left) };
    left -= tok.text.length;
  }
  list.length = at;
}

export const generation = new GenerationStore();

const { settings } = generation;
/** The settings of a text unless a link or the visitor changes them. A page's recorded text has them too. */
const DEFAULTS = {
  tokens: 120,
  temperature: 0.8,
  topK: 0,
  topP: 0.9, // with 1, more words would be misspelt
  minP: 0,
  repetitionPenalty: 1,
  stop: "",
};
const text = { history: false }; // going back in the history changes the view, not the text
const unlessZero = (value: number | undefined) => value || undefined;

/** The settings of the text, which every link carries. */
export const TEXT_PARAMS = [
  param({ ...text, key: "prompt", signal: generation.prompt, parse: parseText, default: () => generation.opening() }),
  param({ ...text, key: "tokens", signal: settings.tokens, parse: parseNumber, default: () => DEFAULTS.tokens }),
  param({
    ...text,
    key: "temperature",
    signal: settings.temperature,
    parse: parseWithin(100),
    default: () => DEFAULTS.temperature,
  }),
  param({ ...text, key: "k", signal: settings.topK, parse: parseWhole, default: () => DEFAULTS.topK }),
  param({
    ...text,
    key: "p",
    signal: settings.topP,
    parse: (value) => unlessZero(parseWithin(1)(value)),
    default: () => DEFAULTS.topP,
  }),
  param({
    ...text,
    key: "minp",
    signal: settings.minP,
    parse: parseWithin(1),
    format: unlessEmpty,
    default: () => DEFAULTS.minP,
  }),
  param({
    ...text,
    key: "penalty",
    signal: settings.repetitionPenalty,
    parse: (value) => unlessZero(parseWithin(100)(value)),
    format: (value) => (value === 1 ? null : String(value)),
    default: () => DEFAULTS.repetitionPenalty,
  }),
  param({ ...text, key: "seed", signal: settings.seed, parse: parseWhole, default: () => 1 }),
  param({
    ...text,
    key: "stop",
    signal: settings.stop,
    parse: parseText,
    format: unlessEmpty,
    default: () => DEFAULTS.stop,
  }),
];
