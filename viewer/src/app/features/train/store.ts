// State and actions of the Train tab.

import { batch, computed, effect, signal, untracked } from "@preact/signals";
import { reason } from "../../../runtime/gl/errors";
import { browserStorage } from "../../../runtime/io/storage";
import { CLEANING } from "../../../training/cleaning";
import { chosenFiles } from "../../../training/files";
import type { Session, SessionState } from "../../../training/session";
import { engine } from "../../stores/model";
import { throttled } from "../../stores/throttled";
import { offerFile } from "../../ui/tools";
import { TrainParams } from "./params";
import { TextStore, TYPED, type Busy } from "./text-store";

const FRAME_MS = 100; // ms between two updates of the metrics: rendering the page slows training on a software driver
const RATE = "glgpt training rate"; // prefix of the storage key of `deviceRate`; the GPU's name follows

class TrainStore extends TextStore {
  readonly session = signal<Session | null>(null);
  /** The state of the session that the page shows, updated at most every `FRAME_MS` ms. */
  readonly shown = signal<SessionState | null>(null);
  /** The part of the scoring that is running, and the share of this part that is done (null: unknown). */
  readonly scoring = signal<{ what: string; share: number | null } | null>(null);
  /** Prompt, length in tokens and temperature of the text to generate. `writing`: the text while it is generated. */
  readonly prompt = signal("\n");
  readonly length = signal(200);
  readonly temperature = signal(0.8);
  readonly writing = signal<string | null>(null);
  /** Floating-point operations per second that a training reaches on this device; 0: not known yet. */
  readonly deviceRate = signal(0);
  /** The settings in a link to the page. */
  readonly link = new TrainParams(this);
  private opened: Promise<void> | null = null;

  /**
   * Loads the offered sizes and texts, and restores the training of an earlier visit. Called whenever the tab is shown;
   * does nothing after the first success.
   */
  readonly open = (): Promise<void> => {
    return (this.opened ??= this.attempt(async (busy) => {
      try {
        await this.load(busy);
      } catch (error) {
        this.opened = null; // the next call tries again
        throw error;
      }
    }));
  };

  private async load(busy: Busy): Promise<void> {
    const { training } = engine();
    const found = await training.offers.ready();
    const judged = training.offers.rate().catch(() => 0); // 0: the first training measures the rate
    void judged.then((rate) => (this.deviceRate.value ||= this.remembered() || rate));
    busy("Looking for an earlier training"); // set before the buttons appear, so that they start disabled
    // in a batch: between these lines, the address would have the default settings instead of the link's
    const wanted = batch(() => {
      this.index.value = found;
      // true if an earlier call chose a size, but failed afterwards
      const chosen = found.sizes.some(({ name }) => name === this.preset.value);
      if (!chosen) this.choose(found.sizes[0]!);
      return this.link.apply();
    });
    const { name } = found.texts.find((text) => text.name === wanted) ?? found.texts[0]!;
    const typed = wanted === null ? this.typed() : null; // a link with a data set replaces the typed text
    const kept = () => (typed ? this.put([typed.text], "", "", typed.steps) : this.putSet(name));
    const set = this.documents.value.length ? Promise.resolve() : kept();
    const failure = await set.then(
      () => null,
      (error: unknown) => (error instanceof Error ? error : new Error(reason(error))),
    );
    if (!training.session) await training.restore();
    if (failure && !training.session) throw failure;
    if (failure) this.problem.value = reason(failure); // not thrown: the restored training has its own text
    effect(() => {
      const found = training.session;
      return untracked(() => this.adopt(found));
    });
  }

  /** Shows a session and follows its changes. Returns a function that stops following them. */
  private adopt(found: Session | null): () => void {
    this.session.value = found;
    this.shown.value = found && found.state.value;
    if (found) {
      if (found.plan.validation.length > found.plan.offer.recipe.context)
        found.scorer.count().catch((error: unknown) => console.warn("baselines:", error));
      const { offer, origin, text, rates, seed, evalEvery, sampleEvery } = found.plan;
      if (text !== null && text !== this.text.value) {
        const named = origin && origin.source !== TYPED ? origin.source : "";
        void this.put([text], named, "", []); // a training's text is cleaned up already
        this.cleaning.value = CLEANING.filter((step) => origin?.cleaned.includes(step) ?? true);
      }
      this.preset.value = offer.name;
      this.tokenizer.value = offer.tokenizer;
      this.shape.value = rates.schedule;
      const { steps, lr, min_lr, warmup } = rates;
      for (const [key, value] of Object.entries({ steps, lr, min_lr, warmup, seed, evalEvery, sampleEvery })) {
        this.schedule[key as keyof typeof this.schedule].value = value;
      }
    }
    return effect(() => {
      if (found?.state.value) this.renew();
    });
  }

  private readonly renew = throttled(() => {
    const found = this.session.value;
    this.shown.value = found && found.state.value;
    if (!found?.tokensPerS) return;
    const { flops, recipe } = found.plan.offer;
    this.deviceRate.value = (flops * found.tokensPerS) / (recipe.batch * recipe.context);
    if (found.status !== "running") this.remember();
  }, FRAME_MS);

  private readonly rateKey = () => `${RATE} ${engine().training.renderer}`;

  private readonly remembered = () => Number(browserStorage.read(this.rateKey()) ?? 0);

  /** Stores the rate for the next visit. Without browser storage, the next visit measures the rate again. */
  private readonly remember = () => browserStorage.write(this.rateKey(), Number(this.deviceRate.value.toPrecision(4)));

  /** True while a training exists or is being created: its text and most settings cannot be changed. */
  readonly fixed = computed(() => this.session.value !== null || this.creating.value);
  private readonly creating = signal(false);

  /** Returns the session; creates one from the settings if there is none. */
  private async made(busy: Busy): Promise<Session> {
    const { training } = engine();
    if (training.session) return training.session;
    this.creating.value = true;
    try {
      return await this.created(busy);
    } finally {
      this.creating.value = false;
    }
  }

  private async created(busy: Busy): Promise<Session> {
    const { training } = engine();
    const what = this.tokenizer.value === "bytes" ? "Compiling the shaders" : "Making the tokenizer";
    busy(what);
    await this.cleaned;
    const { steps, lr, min_lr, warmup, seed, evalEvery, sampleEvery } = this.schedule;
    return training.create({
      text: this.text.value,
      origin: this.origin(),
      seed: seed.value,
      config: {
        preset: this.preset.value,
        tokenizer: this.tokenizer.value,
        steps: steps.value,
        lr: lr.value,
        min_lr: min_lr.value,
        warmup: warmup.value,
        schedule: this.shape.value,
        evalEvery: evalEvery.value,
        sampleEvery: sampleEvery.value,
      },
      onProgress: (share) => busy(what, share),
    });
  }

  /** Applies the learning rate of the settings to the remaining steps. */
  readonly rate = () =>
    this.attempt(() => {
      const found = this.session.value;
      if (!found) return;
      try {
        found.setRate(this.schedule.lr.value);
      } finally {
        this.schedule.lr.value = found.plan.rates.lr;
        this.schedule.min_lr.value = found.plan.rates.min_lr;
      }
    });

  readonly back = () =>
    this.attempt(async (busy) => {
      busy("Going back");
      await engine().training.current().back();
    });

  /** Shows the Train step if the tab shows an earlier step. */
  private watch(): void {
    if (this.stage.value === "data" || this.stage.value === "tokens") this.stage.value = "train";
  }

  readonly start = () =>
    this.attempt(async (busy) => {
      const found = await this.made(busy);
      this.watch();
      if (found.status === "done") found.plan.rates.steps = Math.max(this.schedule.steps.value, found.step);
      void found.start();
    });

  readonly pause = () => this.attempt(() => engine().training.current().pause());

  readonly step = () =>
    this.attempt(async (busy) => {
      const found = await this.made(busy);
      this.watch();
      busy(null);
      await found.one();
    });

  readonly reset = () => this.attempt(() => engine().training.reset());

  readonly write = () =>
    this.attempt(async () => {
      const found = engine().training.current();
      this.writing.value = "";
      try {
        const options = { prompt: this.prompt.value, tokens: this.length.value, temperature: this.temperature.value };
        await found.write((text) => (this.writing.value = text), options);
      } finally {
        this.writing.value = null;
      }
    });

  /** Scores the current model; a running training continues afterwards. */
  readonly score = () =>
    this.attempt(async () => {
      if (this.scoring.value) return;
      this.scoring.value = { what: "Scoring", share: null };
      try {
        await engine().score((what, share) => (this.scoring.value = { what, share }));
      } finally {
        this.scoring.value = null;
      }
    });

  readonly download = () =>
    this.attempt(async (busy) => {
      const { training } = engine();
      busy("Reading the weights");
      offerFile(
        await training.zip(),
        "application/zip",
        `${this.preset.value}-${training.current().checkpoint!.step}-steps.zip`,
      );
    });

  /** Takes files that were dropped or chosen: texts to train on, or a saved model to continue. */
  readonly take = (list: Iterable<File>) =>
    this.attempt(async (busy) => {
      const files = [...list];
      if (!files.length) return;
      const { training } = engine();
      if (files.some((f) => /\.(zip|safetensors)$/i.test(f.name))) {
        await this.open(); // resolves at once unless the tab has just been opened
        busy("Loading the model");
        await this.cleaned; // `text` is out of date before this
        await training.load(await chosenFiles(files), this.text.value);
        return;
      }
      const choice = this.beginChoice();
      const parts: string[] = [];
      for (const file of files) {
        const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
        try {
          parts.push(decoder.decode(await file.arrayBuffer()));
        } catch {
          throw new Error(`${file.name} is not UTF-8 text.`);
        }
      }
      if (!parts.join("")) throw new Error(`${files[0]!.name} is empty.`);
      if (choice.replaced()) return;
      if (training.session) throw new Error("Reset the training first: another text needs a new training.");
      choice.make();
      const names = files.map((f) => f.name);
      await this.prepare(
        parts,
        names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", "),
      );
    });
}

export const train = new TrainStore();

/** Returns the seconds until all steps are done at the current speed; 0: unknown. */
export function secondsLeft({ plan, points, tokensPerS }: SessionState): number {
  const { batch, context } = plan.offer.recipe;
  const at = points.at(-1)?.step ?? 0;
  return tokensPerS ? ((plan.rates.steps - at) * batch * context) / tokensPerS : 0;
}

export function duration(seconds: number): string {
  const s = Math.round(seconds);
  return s < 60
    ? `${s} s`
    : s < 3600
      ? `${Math.floor(s / 60)} min ${s % 60} s`
      : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}
