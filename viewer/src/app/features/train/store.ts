// State and actions of the Train tab.

import { offerFile, throttled } from "../../ui/tools";
import { effect, signal, untracked } from "@preact/signals";
import { CLEANING, type CleaningStep, type Inspection, type Removed } from "../../../training/cleaning";
import type { FetchedText } from "../../../training/fetching";
import { chosenFiles } from "../../../training/files";
import { prepared } from "../../../training/prepare";
import type { Session, SessionState } from "../../../training/session";
import { engine } from "../../stores/model";
import { applySettings } from "./params";
import { choose, index, preset, schedule, set, shape, stage, tokenizer } from "./settings";

export * from "./settings";

const FRAME_MS = 100; // ms between two updates of the metrics: rendering the page slows a software driver down
export const LONG = 200_000; // maximum characters of an editable text

export const session = signal<Session | null>(null);
/** The shown state of the session, renewed at most every `FRAME_MS`. */
export const shown = signal<SessionState | null>(null);
/** The text to train on, after clean-up. */
export const text = signal("");
export const source = signal("");
export const documents = signal<string[]>([]);
export const cleaning = signal<readonly CleaningStep[]>(CLEANING);
export const removed = signal<Removed[]>([]);
export const inspection = signal<Inspection | null>(null);
export const HELD = 0.1; // share of the text that is held out
/** The preparation in progress with its share done (null: unknown), and the last error message. */
export const preparing = signal<{ what: string; share: number | null } | null>(null);
export const problem = signal("");
/** The scoring step in progress with its share done (null: unknown). */
export const scoring = signal<{ what: string; share: number | null } | null>(null);
/** Prompt, length in tokens and temperature of the text to generate, and the text while it is generated. */
export const prompt = signal("\n");
export const length = signal(200);
export const temperature = signal(0.8);
export const writing = signal<string | null>(null);

/** Floating-point operations per second that a training reaches on this device; 0: not known yet. */
export const deviceRate = signal(0);
const RATE = "glgpt training rate"; // prefix of its key in localStorage, followed by the device's name

let opened: Promise<void> | null = null;

/** Called when the tab is first shown: loads the sizes and texts on offer, and restores an earlier visit's training. */
export function open(): Promise<void> {
  return (opened ??= attempt(async (busy) => {
    const { training } = engine();
    const found = await training.ready();
    const judged = training.rate().catch(() => 0); // 0: the first training measures it
    void judged.then((rate) => (deviceRate.value ||= remembered() || rate));
    busy("Looking for an earlier training"); // set before the buttons appear, so that they start disabled
    index.value = found;
    choose(found.sizes[0]!);
    const wanted = applySettings();
    const { name, about } = found.texts.find((text) => text.name === wanted) ?? found.texts[0]!;
    await put([await training.bundled(name)], about, name);
    if (!training.session) await training.restore();
    effect(() => {
      const found = training.session;
      return untracked(() => adopt(found));
    });
  }));
}

/** Shows a session, and follows it until the function that it returns is called. */
function adopt(found: Session | null): () => void {
  session.value = found;
  shown.value = found && found.state.value;
  if (found) {
    if (found.plan.validation.length > found.plan.offer.recipe.context)
      found.scorer.count().catch((error: unknown) => console.warn("baselines:", error));
    const { offer, rates, seed, evalEvery, sampleEvery } = found.plan;
    if (found.plan.text !== null && found.plan.text !== text.value) {
      void put([found.plan.text], found.plan.origin?.source ?? "", "", []);
    }
    preset.value = offer.name;
    tokenizer.value = offer.tokenizer;
    shape.value = rates.schedule;
    const { steps, lr, min_lr, warmup } = rates;
    for (const [key, value] of Object.entries({ steps, lr, min_lr, warmup, seed, evalEvery, sampleEvery })) {
      schedule[key as keyof typeof schedule].value = value;
    }
  }
  return effect(() => {
    if (found?.state.value) changed();
  });
}

const changed = throttled(() => {
  const found = session.value;
  shown.value = found && found.state.value;
  if (!found?.tokensPerS) return;
  const { flops, recipe } = found.plan.offer;
  deviceRate.value = (flops * found.tokensPerS) / (recipe.batch * recipe.context);
  if (found.status !== "running") remember();
}, FRAME_MS);

const rateKey = () => `${RATE} ${engine().training.renderer}`;

function remembered(): number {
  try {
    return Number(localStorage.getItem(rateKey()) ?? 0);
  } catch {
    return 0; // storage is not available
  }
}

function remember(): void {
  try {
    localStorage.setItem(rateKey(), deviceRate.value.toExponential(3));
  } catch {
    // storage is not available: measured again on the next visit
  }
}

let asked = 0;
let cleaned: Promise<void> = Promise.resolve();

/** Sets the documents to train on and cleans them up. */
export function put(
  from: string[],
  named: string,
  kind = "",
  steps: readonly CleaningStep[] = cleaning.value,
): Promise<void> {
  documents.value = from;
  source.value = named;
  set.value = kind;
  cleaning.value = steps;
  const mine = ++asked;
  cleaned = prepared(from, steps, HELD).then((found) => {
    if (mine !== asked) return; // another text replaced this one
    text.value = found.text;
    removed.value = found.removed;
    inspection.value = found.inspection;
  });
  return cleaned;
}

/** Replaces the text with a data set. */
export const takeSet = (name: string) =>
  attempt(async () => {
    const { about } = index.value!.texts.find((found) => found.name === name)!;
    await put([await engine().training.bundled(name)], about, name);
  });

/** The download in progress: bytes received, bytes in total (0: unknown), and why it is being retried. */
export const fetching = signal<{ what: string; done: number; total: number; again: string } | null>(null);
export const encoding = signal("utf-8");
let stopFetching: AbortController | null = null;
let fetched: FetchedText | null = null; // the last fetched text, with its source

/** Fetches a text that the visitor requested, and replaces the current one with it. */
export const fetchFrom = (address: string, title = "", read = encoding.value) =>
  attempt(async () => {
    if (fetching.value) return;
    const stop = (stopFetching = new AbortController());
    const show = (change: Partial<{ done: number; total: number; again: string }>) =>
      (fetching.value = { what: title || address, done: 0, total: 0, again: "", ...fetching.value, ...change });
    show({});
    try {
      const found = await engine().fetchText(address, {
        encoding: read,
        signal: stop.signal,
        onBytes: (done, total) => show({ done, total, again: "" }),
        onRetry: (again) => show({ again }),
      });
      if (session.value) throw new Error("Reset the training first: another text needs a new training.");
      fetched = found;
      await put([found.text], title || found.source);
    } finally {
      fetching.value = stopFetching = null;
    }
  });

export const cancelFetching = () => stopFetching?.abort();

/** Reports a preparation and its share done (null: unknown); `what` null: it has ended. */
type Busy = (what: string | null, share?: number | null) => void;

/** Runs an action and shows its error, if any. Keeps the progress message of another action that is still running. */
async function attempt(work: (busy: Busy) => Promise<void> | void): Promise<void> {
  problem.value = "";
  let said: typeof preparing.value = null;
  const busy: Busy = (what, share = null) => {
    if (what !== null) preparing.value = said = { what, share };
    else if (preparing.value === said) preparing.value = null;
  };
  try {
    await work(busy);
  } catch (error) {
    problem.value = error instanceof Error ? error.message : String(error);
  }
  busy(null);
}

/** Returns the session; creates one from the settings if there is none. */
async function made(busy: Busy): Promise<Session> {
  const { training } = engine();
  if (training.session) return training.session;
  const what = tokenizer.value === "bytes" ? "Compiling the shaders" : "Making the tokenizer";
  busy(what);
  await cleaned;
  const came = fetched && documents.value[0] === fetched.text ? fetched : null;
  const named = set.value ? `glgpt ${set.value}` : source.value || "typed";
  const origin = { source: came?.source ?? named, date: came?.date ?? null, cleaned: [...cleaning.value] };
  const { steps, lr, min_lr, warmup, seed, evalEvery, sampleEvery } = schedule;
  return training.create({
    text: text.value,
    origin,
    seed: seed.value,
    config: {
      preset: preset.value,
      tokenizer: tokenizer.value,
      steps: steps.value,
      lr: lr.value,
      min_lr: min_lr.value,
      warmup: warmup.value,
      schedule: shape.value,
      evalEvery: evalEvery.value,
      sampleEvery: sampleEvery.value,
    },
    onProgress: (share) => busy(what, share),
  });
}

/** Applies the learning rate of the settings to the remaining steps. */
export const rate = () =>
  attempt(() => {
    const found = session.value;
    if (!found) return;
    try {
      found.setRate(schedule.lr.value);
    } finally {
      schedule.lr.value = found.plan.rates.lr;
      schedule.min_lr.value = found.plan.rates.min_lr;
    }
  });

export const back = () =>
  attempt(async (busy) => {
    busy("Going back");
    await engine().training.current().back();
  });

/** Moves on to the Train step if an earlier one is shown. */
function watch(): void {
  if (stage.value === "data" || stage.value === "tokens") stage.value = "train";
}

export const start = () =>
  attempt(async (busy) => {
    watch();
    const found = await made(busy);
    if (found.status === "done") found.plan.rates.steps = Math.max(schedule.steps.value, found.step);
    void found.start();
  });

export const pause = () => attempt(() => engine().training.current().pause());

/** Takes a single training step. */
export const step = () =>
  attempt(async (busy) => {
    watch();
    const found = await made(busy);
    busy(null);
    await found.one();
  });

export const reset = () => attempt(() => engine().training.reset());

export const write = () =>
  attempt(async () => {
    const found = engine().training.current();
    writing.value = "";
    try {
      const options = { prompt: prompt.value, tokens: length.value, temperature: temperature.value };
      await found.write((text) => (writing.value = text), options);
    } finally {
      writing.value = null;
    }
  });

/** Scores the current model; a running training continues afterwards. */
export const score = () =>
  attempt(async () => {
    if (scoring.value) return;
    scoring.value = { what: "Scoring", share: null };
    try {
      await engine().score((what, share) => (scoring.value = { what, share }));
    } finally {
      scoring.value = null;
    }
  });

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

export const download = () =>
  attempt(async (busy) => {
    const { training } = engine();
    busy("Reading the weights");
    offerFile(
      await training.zip(),
      "application/zip",
      `${preset.value}-${training.current().checkpoint!.step}-steps.zip`,
    );
  });

/** Takes files that were dropped or chosen: texts to train on, or a saved model to continue. */
export const take = (list: Iterable<File>) =>
  attempt(async (busy) => {
    const files = [...list];
    if (!files.length) return;
    const { training } = engine();
    if (files.some((f) => /\.(zip|safetensors)$/i.test(f.name))) {
      await open(); // the tab may have just been opened
      busy("Loading the model");
      await cleaned; // its text may still be loading
      await training.load(await chosenFiles(files), text.value);
      return;
    }
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
    if (training.session) throw new Error("Reset the training first: another text needs a new training.");
    const names = files.map((f) => f.name);
    await put(
      parts,
      names.length > 3 ? `${names.slice(0, 2).join(", ")} and ${names.length - 2} more` : names.join(", "),
    );
  });

/** Switches a clean-up step on or off. */
export const clean = (step: CleaningStep, on: boolean) =>
  attempt(() =>
    put(
      documents.value,
      source.value,
      set.value,
      CLEANING.filter((s) => (s === step ? on : cleaning.value.includes(s))),
    ),
  );
