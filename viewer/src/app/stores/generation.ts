// The page's main text: stores its tokens, and generates more.

import { batch, computed, signal } from "@preact/signals";
import type { Generated } from "../../api";
import type { Manifest, Recorded } from "../../runtime/engine/manifest";
import { probabilities } from "../../runtime/engine/probabilities";
import type { Candidate } from "../../runtime/engine/sampling";
import { reason } from "../../runtime/gl/errors";
import { Queue } from "../../runtime/gl/wait";
import { textMeter } from "./meter";
import { engine, models } from "./model";
import { settings } from "./settings";

export interface Tok {
  id: number;
  text: string;
  label: string;
  given: boolean;
  p?: number;
  /** The probability with which the sampler drew the token; absent if the token was given. */
  sampled?: number;
  top?: readonly Candidate[];
}

const ALTERNATIVES = 8; // per token

class GenerationStore {
  /** The recorded generation, shown until the model can run. `layers`, `heads`: the numbers of its model. */
  readonly recorded = signal<(Recorded & { layers: number; heads: number; about: Manifest }) | null>(null);
  /** The model's manifest. While the model loads: the manifest that belongs to the recorded generation. */
  readonly manifest = computed(() => models.ready?.manifest ?? this.recorded.value?.about);
  readonly tokens = signal<Tok[]>([]);
  readonly running = signal(false);
  readonly note = signal("");
  /** Why the latest generation ended. If it failed, `note` has the error. */
  readonly ended = signal<Generated["stopped"] | "failed">("tokens");
  readonly speeds = signal<{ prefill: number; decode: number; given: number } | null>(null);
  readonly chosen = signal<number | null>(null);
  /** True once the computation of alternatives has taken a second, until it ends. */
  readonly weighing = signal(false);
  /** Set before the page shows more of a generated text. `read`: the number of the text's tokens in the context. */
  readonly upcoming = signal<{ read: number } | null>(null);
  readonly ids = computed(() => this.tokens.value.map((t) => t.id));
  // the part of the text that fits the model's context: the position of its first token, its tokens and their ids
  readonly readFrom = computed(() => models.ready?.context.readFrom(this.tokens.value.length) ?? 0);
  readonly read = computed(() => models.ready?.context.read(this.tokens.value) ?? []);
  readonly readIds = computed(() => this.read.value.map((t) => t.id));
  private readonly meter = textMeter();
  private readonly labels = new Map<number, string>(); // labels of the recorded tokens, by id
  private readonly stops = new Queue();
  private abort: AbortController | null = null;
  private repeat: () => Promise<void> = () => this.write();

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
   * Keeps the recorded text if the prompt and the settings are the recorded ones. Returns true if the text was kept:
   * nothing needs to be generated then.
   */
  keepRecorded(): boolean {
    const found = this.recorded.value;
    const given = settings.knownIds();
    const same =
      found?.given === given.length &&
      given.every((id, i) => id === found.tokens[i]!.id) &&
      settings.seed.value === found.seed &&
      settings.areRecommended;
    if (same) this.recorded.value = null; // `tokens` holds its text already
    return same;
  }

  /** Forgets the text of the previous model. */
  reset(): void {
    batch(() => {
      this.tokens.value = [];
      this.chosen.value = this.speeds.value = null;
    });
  }

  label(id: number): string {
    const model = models.ready;
    if (!model) return this.labels.get(id) ?? String(id);
    return model.tokenizer?.label(id) ?? String(id);
  }

  /** Generates text after the prompt. */
  async write(): Promise<void> {
    await this.attempt(async () => {
      await this.stop(); // a generation that is still running would replace the prompt
      this.repeat = () => this.write();
      const list = settings.promptIds();
      engine().model.check(list);
      const start = this.given(list);
      this.tokens.value = [...start, ...this.recordedAfter(start)];
      await this.extend(settings.tokens.value, start.length);
    });
  }

  /**
   * Shows the text of `ids` and continues it by up to `count` tokens. The tokens with which both `ids` and the current
   * text begin keep their alternatives. After a change of the model, `again` is called to generate the text again.
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
    await this.attempt(() => this.extend(count, ids.length));
  }

  /** Shows a text that was generated earlier. */
  async show(tokens: readonly Tok[]): Promise<void> {
    await this.stop();
    batch(() => {
      this.recorded.value = this.chosen.value = this.speeds.value = null;
      this.tokens.value = [...tokens];
    });
  }

  /** Returns the tokens of a prompt and of a stored answer to it. `weigh` computes their probabilities when needed. */
  toksOf(prompt: readonly number[], written: readonly number[]): Tok[] {
    return this.given([...prompt, ...written]).map((tok, i) => ({ ...tok, given: i < prompt.length }));
  }

  /** Generates the text again as the last `write` or `continueIds` did. */
  async again(): Promise<void> {
    await this.repeat();
  }

  /** Generates `count` tokens from position `from` on (default: the end). `instead` replaces the token at `from`. */
  async go(count: number, from?: number, instead?: number): Promise<void> {
    await this.attempt(async () => {
      await this.stop();
      await this.extend(count, from, instead);
    });
  }

  /** Generates as `go` does. No generation may be running. */
  private async extend(count: number, from?: number, instead?: number): Promise<void> {
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
      this.note.value = "";
    });
    await this.run((signal) => this.stream(count, kept, signal));
  }

  /**
   * Stops a running generation. Simultaneous calls resolve in order: a call waits until the previous caller has
   * continued, and also stops a generation that the previous caller has begun. So only the last caller's generation
   * continues.
   */
  stop(): Promise<void> {
    return this.stops.run(async () => {
      while (this.running.value) {
        this.abort?.abort();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    });
  }

  /** Runs `work` as the current generation; `stop` aborts it. */
  async run(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    this.abort = new AbortController();
    this.running.value = true;
    try {
      await work(this.abort.signal);
    } finally {
      this.running.value = false;
      this.abort = null;
    }
  }

  private async stream(count: number, kept: Tok[], signal: AbortSignal): Promise<void> {
    const list = [...kept];
    const held = engine().model.cache.held(kept.map((t) => t.id)); // tokens in the KV cache, which need no prefill
    let frame = 0; // the animation frame requested for the next update; 0: none
    this.meter.rest();
    const shown = () => {
      frame = 0;
      this.tokens.value = [...list, ...this.recordedAfter(list)];
    };
    try {
      const result = await engine().generate({
        ids: kept.map((t) => t.id),
        tokens: count,
        drawn: kept.filter((t) => !t.given).length,
        ...settings.sampling(),
        alternatives: ALTERNATIVES,
        speculate: settings.speculate.value,
        signal,
        onToken: (token) => {
          list.push({ ...token, label: this.label(token.id), given: false });
          if (!this.meter.due(token.more) || frame) return;
          this.upcoming.value = { read: list.length - engine().model.context.readFrom(list.length) };
          frame = requestAnimationFrame(shown);
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
      this.ended.value = result.stopped;
    } finally {
      cancelAnimationFrame(frame); // a pending frame would replace a later text
      this.recorded.value = null; // replaced by the model's own text
      shown();
    }
  }

  /**
   * Returns the recorded tokens that follow `list`, which are shown until the model generates tokens. Returns none if
   * the recorded text does not begin with `list`.
   */
  private recordedAfter(list: readonly Tok[]): readonly Tok[] {
    const all = this.recorded.value?.tokens ?? [];
    return list.every((tok, i) => tok.id === all[i]?.id)
      ? all.slice(list.length).map((tok) => ({ ...tok, given: false }))
      : [];
  }

  /** Computes the chosen token's alternatives if they are missing, as in a prompt or a stored answer. */
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

  private async attempt(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.ended.value = "failed";
      this.note.value = reason(error);
    }
  }
}

/** Truncates the text of the tokens from index `from` on to `length` characters, to hide the stop text. */
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
