// The page's state as signals, the actions on it, and its link in the address bar.

import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import type { Continuation, Glgpt, Used } from "../../api";
import { parseIntervention } from "../../runtime/engine/interventions";
import { KINDS, MEAN, type Kind } from "../drawing/attention";
import type { Progress } from "../../runtime/engine/loader";
import type { Manifest, Recorded } from "../../runtime/engine/manifest";
import { PageError, reason } from "../../runtime/gl/errors";
import { Meter } from "./meter";
import { probabilities } from "../../runtime/engine/probabilities";
import type { Candidate } from "../../runtime/engine/sampling";

export interface Tok {
  id: number;
  text: string;
  label: string;
  given: boolean;
  p?: number;
  /** The probability with which the sampler drew it; absent if it was given. */
  sampled?: number;
  top?: Candidate[];
}

export const VIEWS = ["text", "attention", "blocks", "textures", "passes", "train", "device"] as const;
export type ViewName = (typeof VIEWS)[number];
export const TITLES: Record<ViewName, string> = {
  text: "Text",
  attention: "Attention",
  blocks: "Blocks",
  textures: "Textures",
  passes: "Passes",
  train: "Train",
  device: "Device",
};

/** The training settings in a link: data set, size, vocabulary, schedule. */
export const lesson = signal<Record<string, string>>({});
/** Their keys in a link. `seed` and `tokens` are taken: they belong to the text. */
export const LESSON = {
  set: "set",
  size: "size",
  tokens: "vocabulary",
  seed: "train-seed",
  schedule: "schedule",
  numbers: ["steps", "lr", "min_lr", "warmup", "evalEvery", "sampleEvery"] as const,
};
/** The steps of the Train tab. */
export const STAGES = ["data", "tokens", "train", "write", "score"] as const;
export type Stage = (typeof STAGES)[number];

/** The recorded generation that is shown until the model can run; `layers` and `heads` are the size of its attention grid. */
export const recorded = signal<(Recorded & { layers: number; heads: number; about: Manifest }) | null>(null);
export const phase = signal<"loading" | "ready" | "failed">("loading");
export const failure = signal("");
export const progress = signal<Progress & { speed: number }>({ done: 0, total: 0, cached: 0, compiled: 0, shaders: 0, speed: 0 });
export const view = signal<ViewName>("text");
export const prompt = signal("");
export const settings = {
  tokens: signal(0),
  temperature: signal(0),
  topK: signal(0),
  topP: signal(0),
  minP: signal(0),
  repetitionPenalty: signal(1),
  seed: signal(0),
  stop: signal(""),
};
/** Unknown keys of the link that the page was opened with. */
export const unknown = signal<readonly string[]>([]);
/** The selection within each view; part of the link. */
export const place = {
  layer: signal(0),
  head: signal(0), // or MEAN
  sought: signal(true), // no head was chosen: the Attention view selects the sharpest
  beside: signal<string[]>([]), // pinned heads, as `layer.head`
  kind: signal<Kind>("pattern"),
  texture: signal(""),
  entry: signal(""),
  pass: signal(Infinity), // of the entry, from 0; clamped to its last pass
  stage: signal<Stage>("data"),
};

/** Returns the layer and head of a name such as `3.5` or `3.mean`. */
export function headNamed(name: string): [number, number] {
  const [layer, head] = name.split(".");
  return [Number(layer), head === "mean" ? MEAN : Number(head)];
}

/** Enlarges a head in the Attention view. */
export function chooseHead(layer: number, head: number): void {
  batch(() => {
    place.layer.value = layer;
    place.head.value = head;
    place.sought.value = false;
  });
}

/** Returns the index of the selected pass of an entry. */
export const passOf = ({ passes }: { passes: readonly unknown[] }) => Math.min(place.pass.value, passes.length - 1);

export const headName = (layer: number, head: number) => `${layer}.${head === MEAN ? "mean" : head}`;

function numberIn(link: URLSearchParams, key: string, otherwise: number): number {
  const text = link.get(key);
  return text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : otherwise;
}

const KEYS = new Set([
  ...["view", "prompt", "tokens", "temperature", "k", "p", "minp", "penalty", "seed", "stop", "tour", "interventions"],
  ...["layer", "head", "kind", "beside", "texture", "entry", "pass", "step", "join", "boundary", "server"],
  ...Object.values(LESSON).flat(),
]);

/** Sets the view and the selection within it from the part of the address after `#`. */
function readPlace(link: URLSearchParams): void {
  const whole = (key: string) => Math.max(0, Math.floor(numberIn(link, key, 0)));
  unknown.value = [...new Set(link.keys())].filter((key) => !KEYS.has(key));
  view.value = VIEWS.find((v) => v === link.get("view")) ?? "text";
  place.layer.value = whole("layer");
  place.head.value = link.get("head") === "mean" ? MEAN : whole("head");
  place.sought.value = !link.has("head");
  place.beside.value = (link.get("beside") ?? "").split(",").filter((name) => /^\d+\.(\d+|mean)$/.test(name));
  place.kind.value = KINDS.find((kind) => kind === link.get("kind")) ?? "pattern";
  place.texture.value = link.get("texture") ?? "embed";
  place.entry.value = link.get("entry") ?? "decode";
  place.pass.value = link.has("pass") ? whole("pass") : Infinity;
  tour.value = whole("tour");
  tourMoves.value = tour.value > 0 && !link.has("view");
  const { numbers, ...names } = LESSON;
  const keys: readonly string[] = [...Object.values(names), ...numbers];
  lesson.value = Object.fromEntries([...link].filter(([key]) => keys.includes(key)));
  place.stage.value = STAGES.find((stage) => stage === link.get("step")) ?? "data";
}

/** Returns the initial prompt: the export's first one, or a few ids without a tokenizer; "" until the model can run. */
function opening(): string {
  if (phase.value !== "ready") return "";
  const { tokenizer, manifest } = glgpt.model;
  return tokenizer ? shorter(manifest.prompts[0]?.text ?? "") : "1 2 3";
}

/** Sets the prompt and its settings from the address, with a default for each absent key. */
function readText(link: URLSearchParams): void {
  prompt.value = link.get("prompt") ?? opening();
  settings.tokens.value = numberIn(link, "tokens", 120);
  const within = (key: string, otherwise: number, most: number) => Math.min(Math.max(0, numberIn(link, key, otherwise)), most);
  settings.temperature.value = within("temperature", 0.8, 100);
  settings.topK.value = Math.floor(within("k", 0, Number.MAX_SAFE_INTEGER));
  settings.topP.value = within("p", 0.9, 1) || 0.9; // fewer misspelt words than with 1
  settings.minP.value = within("minp", 0, 1);
  settings.repetitionPenalty.value = within("penalty", 1, 100) || 1;
  settings.seed.value = Math.floor(within("seed", 1, Number.MAX_SAFE_INTEGER));
  settings.stop.value = link.get("stop") ?? "";
  interventions.value = (link.get("interventions") ?? "").split(",").filter(isChange);
}

function isChange(text: string): boolean {
  try {
    return Boolean(parseIntervention(text).part);
  } catch {
    return false; // a link may hold anything
  }
}

const address = () => new URLSearchParams(location.hash.slice(1));

export const tokens = signal<Tok[]>([]);
export const running = signal(false);
export const note = signal("");
export const speeds = signal<{ prefill: number; decode: number; given: number } | null>(null);
export const chosen = signal<number | null>(null);
/** The card of the tour that is open, from 1; 0: none. */
export const tour = signal(0);
/** True if that card was opened alone, not as part of the tour. */
export const tourAlone = signal(false);
/** True if the link names a card and no view: the card then opens its view as soon as the model is ready. */
export const tourMoves = signal(false);
/** Requested interventions (see `Glgpt.intervene`), those that the engine has applied, and the unchanged model's text. */
export const interventions = signal<readonly string[]>([]);
export const applied = signal("");
export const before = signal<readonly Tok[] | null>(null);
/** Progress or error message of the pending intervention. */
export const intervening = signal("");
/** Change of each token's log-probability (nats) in the original text, caused by the interventions; null: not computed yet. */
export const shifts = signal<readonly number[] | null>(null);
/** The model in use, a counter of model changes, and the name of a model opened from files. */
export const used = signal<Used>("own");
export const model = signal(0);
export const fileName = signal("");
/** Progress of a switch to another model, and the error message if it failed. */
export const switching = signal("");
export const refused = signal("");
/** True if the machine is unfolded. */
export const machine = signal(true);
/** True while the graphics context is lost. */
export const lost = signal(false);
/** The number of tokens of the prompt in its field. */
export const promptLength = computed(() => (phase.value === "ready" && model.value >= 0 ? known(promptIds).length : 0));
export const ids = computed(() => tokens.value.map((t) => t.id));
/** The part of the text that fits the model's context: its first position, its tokens and their ids. */
export const readFrom = computed(() => (phase.value === "ready" && model.value >= 0 ? glgpt.model.context.readFrom(tokens.value.length) : 0));
export const read = computed(() => (phase.value === "ready" && model.value >= 0 ? glgpt.model.context.read(tokens.value) : []));
export const readIds = computed(() => read.value.map((t) => t.id));
/** The maximum of tokens to generate at once. */
export const MAX_TOKENS = 4096;
/** Continuations side by side (null: none were requested), their speed in tokens per second, and a status or error message. */
export const several = signal<readonly Continuation[] | null>(null);
export const severalRate = signal(0);
export const severalNote = signal("");
/** Counts the moves of the split point. */
export const moved = signal(0);
/** The number of continuations side by side; 0: the model in its current state can only write one text at a time. */
export const textsAtOnce = computed(() => (phase.value === "ready" && model.value >= 0 && moved.value >= 0 && applied.value === "" ? glgpt.model.batch.texts : 0));
/** Called during a generation before each update of the text, with the number of its tokens that are in the context. */
export const listeners = new Set<(read: number) => void>();

const OWN = "glgpt"; // marks history entries that this page created
const WEIGHED = 8; // alternatives per token
const FRAME = 40; // minimum ms between two updates of the text
const meter = new Meter(0.03, FRAME, 1000); // with a software driver, rendering the page slows generation down
let glgpt: Glgpt;
let abort: AbortController | null = null;

export const engine = (): Glgpt => glgpt;

export function start(instance: Glgpt): void {
  glgpt = instance;
  readPlace(address());
  readText(address());
  glgpt.onProgress = watchSpeed();
  glgpt.onRecorded = showRecorded;
  glgpt.ready.then(begun).catch((error: unknown) => {
    failure.value = error instanceof PageError ? error.message : `${reason(error)}. ${UNEXPECTED}`;
    phase.value = "failed";
  });
}

const UNEXPECTED = "This is an unexpected error: reload the page, and export the model again if that does not help.";

/** Shows the model, which is ready now. */
function begun(): void {
  const { model: own } = glgpt;
  glgpt.onModel = another;
  own.device.onLost = (now) => (lost.value = now);
  fit();
  batch(() => {
    chosen.value = null;
    phase.value = "ready";
    if (!address().has("prompt")) prompt.value = opening();
  });
  effect(share); // the address follows every setting
  effect(() => void (document.title = `${TITLES[view.value]} · ${model.value >= 0 && glgpt.model.manifest.model} · glgpt`));
  effect(() => void weigh());
  addEventListener("popstate", (event) => void follow(event.state !== null));
  void begin();
}

/** Shows the recorded generation while the model loads. */
function showRecorded(document: Recorded, manifest: Manifest): void {
  const { n_layer, n_head } = manifest.config;
  document.tokens.forEach((t) => [t, ...(t.top ?? [])].forEach(({ id, label }) => labels.set(id, label)));
  batch(() => {
    recorded.value = { ...document, layers: n_layer, heads: n_head, about: manifest };
    tokens.value = document.tokens.map((t, i) => ({ ...t, given: i < document.given }));
  });
}

const WINDOW = 3000; // ms over which the speed of a download is measured
const STALE = 1500; // ms without a byte after which the speed counts as 0

/** Returns a progress callback that also measures the download speed over the last `WINDOW` ms. */
function watchSpeed(): (p: Progress) => void {
  const heard: { at: number; fetched: number }[] = [];
  let timer = 0;
  return (p) => {
    const [at, fetched] = [performance.now(), p.done - p.cached];
    if (heard.at(-1)?.fetched !== fetched) {
      heard.push({ at, fetched });
      clearTimeout(timer);
      timer = setTimeout(() => (progress.value = { ...progress.value, speed: 0 }), STALE);
    }
    while (heard.length > 2 && at - heard[0]!.at > WINDOW) heard.shift();
    const [first, last] = [heard[0]!, heard.at(-1)!];
    const flowing = p.done < p.total && last.at > first.at && at - last.at < STALE;
    progress.value = { ...p, speed: flowing ? (1000 * (last.fetched - first.fetched)) / (last.at - first.at) : 0 };
  };
}

/** Clamps the settings of a link to the model's layers and heads. */
function fit(): void {
  const { n_head } = glgpt.model.manifest.config;
  const { blocks: n_layer } = glgpt.model.placement;
  place.layer.value = Math.min(place.layer.value, n_layer - 1);
  place.head.value = Math.min(place.head.value, n_head - 1);
  place.beside.value = place.beside.value.filter((name) => {
    const [layer, head] = headNamed(name);
    return layer < n_layer && head < n_head;
  });
  settings.tokens.value = Math.min(Math.max(1, Math.floor(settings.tokens.value)), MAX_TOKENS);
}

/** Applies the address after it changed: an entry of this page's history (`own`), or a pasted link. */
async function follow(own: boolean): Promise<void> {
  const link = address();
  const earlier = wanted();
  batch(() => {
    readPlace(link);
    if (!own) readText(link); // going back in the history changes the view, not the text
    fit();
  });
  share();
  if (wanted() === earlier) return;
  await stop();
  await begin();
}

/** Returns everything that determines the text, as one string to compare. */
const wanted = () => JSON.stringify([prompt.value, interventions.value, ...Object.values(settings).map((setting) => setting.value)]);

export function share(): void {
  const fields: Record<string, string> = {
    view: view.value,
    prompt: prompt.value,
    tokens: String(settings.tokens.value),
    temperature: String(settings.temperature.value),
    k: String(settings.topK.value),
    p: String(settings.topP.value),
    ...(settings.minP.value ? { minp: String(settings.minP.value) } : {}),
    ...(settings.repetitionPenalty.value !== 1 ? { penalty: String(settings.repetitionPenalty.value) } : {}),
    seed: String(settings.seed.value),
  };
  if (settings.stop.value) fields["stop"] = settings.stop.value;
  if (tour.value) fields["tour"] = String(tour.value);
  if (interventions.value.length) fields["interventions"] = interventions.value.join();
  const { layer, head, sought, beside, kind, texture, entry, pass, stage } = place;
  if (view.value === "attention")
    Object.assign(fields, {
      kind: kind.value,
      ...(sought.value ? {} : { layer: String(layer.value), head: head.value === MEAN ? "mean" : String(head.value) }),
      ...(beside.value.length ? { beside: beside.value.join() } : {}),
    });
  if (view.value === "textures") fields["texture"] = texture.value;
  if (view.value === "train") Object.assign(fields, { step: stage.value }, lesson.value);
  if (view.value === "passes") 
    Object.assign(fields, { entry: entry.value, ...(Number.isFinite(pass.value) ? { pass: String(pass.value) } : {}) });
  history.replaceState(OWN, "", `#${new URLSearchParams(fields)}`);
}

/** Opens a view as a new history entry, so that the browser's back button returns to the previous view. */
export function show(name: ViewName): void {
  if (name !== view.value) history.pushState(OWN, "");
  view.value = name;
  scrollTo({ top: 0 });
}

/** Opens a view and scrolls to a part of it once it is rendered; `nearest`: only as far as needed. */
export function showAt(name: ViewName, part: string, block: ScrollLogicalPosition = "start"): void {
  show(name);
  setTimeout(() => document.querySelector(part)?.scrollIntoView({ block }), 2 * FRAME);
}

/** Opens the Textures view at a texture, by its dotted name. */
export function showTexture(name: string): void {
  show("textures");
  place.texture.value = name;
}

function given(list: readonly number[]): Tok[] {
  const decoder = glgpt.model.tokenizer?.stream();
  return list.map((id) => ({ id, text: decoder ? decoder.push(id) : ` ${id}`, label: label(id), given: true }));
}

const labels = new Map<number, string>(); // of the recorded tokens

export function label(id: number): string {
  if (phase.value !== "ready") return labels.get(id) ?? String(id);
  return glgpt.model.tokenizer?.label(id) ?? String(id);
}

function promptIds(): number[] {
  if (glgpt.model.tokenizer) return glgpt.model.promptIds(prompt.value);
  return (prompt.value.match(/\d+/g) ?? []).map(Number);
}

/** Returns the ids, or none if the vocabulary lacks a character of the text: generating then reports it. */
function known(ids: () => number[]): number[] {
  try {
    return ids();
  } catch {
    return [];
  }
}

/** Generates text after the prompt. */
export async function write(): Promise<void> {
  await attempt(async () => {
    const list = promptIds();
    glgpt.model.check(list);
    const start = given(list);
    tokens.value = [...start, ...recordedAfter(start)];
    await go(settings.tokens.value, start.length);
  });
}

/** Generates the text of the link. With interventions, it generates the unchanged model's text first, to compare. */
async function begin(): Promise<void> {
  const requested = interventions.value;
  if (applied.value) await setInterventions([], false);
  await write();
  if (requested.length) await setInterventions(requested);
}

/** Adds or removes an intervention, and generates the text again with the same seed, next to the original. */
export async function toggleIntervention(part: string): Promise<void> {
  await setInterventions(interventions.value.includes(part) ? interventions.value.filter((p) => p !== part) : [...interventions.value, part]);
}

/** Replaces all interventions; with `again`, generates the text again. */
export async function setInterventions(parts: readonly string[], again = true): Promise<void> {
  await stop();
  if (parts.length && !before.value) before.value = tokens.value;
  interventions.value = parts;
  intervening.value = parts.length ? "Changing the model…" : "";
  try {
    await glgpt.intervene(parts, (compiled, shaders) => (intervening.value = `Compiling shaders ${compiled} of ${shaders}`));
    intervening.value = "";
  } catch (error) {
    interventions.value = glgpt.model.interventions.parts;
    intervening.value = error instanceof Error ? error.message : String(error);
  }
  applied.value = glgpt.model.interventions.parts.join();
  if (!applied.value) before.value = null;
  shifts.value = null;
  if (again) await write();
}

/** Computes `shifts`: scores the original text with the changed model. Another change, generation or view aborts it. */
export async function weighShifts(): Promise<void> {
  const [whole, of, seen] = [before.value, applied.value, view.value];
  const first = whole?.findIndex((tok) => !tok.given && tok.p !== undefined) ?? -1;
  if (!whole || first < 1 || running.value) return;
  const ids = whole.map((tok) => tok.id);
  const going = () => applied.value === of && before.value === whole && !running.value && view.value === seen;
  const found = await glgpt.logProbabilities(ids, first, going);
  if (going()) shifts.value = whole.map((tok, i) => (i < first ? NaN : found[i - first]! - Math.log(tok.p ?? NaN)));
}

/** Generates `count` tokens from position `from` on (default: the end); `instead` is then the token at `from`. */
export async function go(count: number, from?: number, instead?: number): Promise<void> {
  await attempt(async () => {
    await stop();
    let kept = from === undefined ? tokens.value : tokens.value.slice(0, from);
    if (instead !== undefined) {
      const was = tokens.value[from ?? 0];
      const weighed = was?.top?.find((c) => c.id === instead);
      const text = glgpt.decode([instead]);
      kept = [...kept, { text, label: label(instead), given: false, ...(was?.top ? { top: was.top } : {}), ...weighed, id: instead }];
    }
    if (!kept.length) return;
    batch(() => {
      tokens.value = [...kept, ...recordedAfter(kept)];
      chosen.value = null;
      running.value = true;
      note.value = "";
    });
    await stream(count, kept);
  });
}

async function stream(count: number, kept: Tok[]): Promise<void> {
  const list = [...kept];
  const held = glgpt.model.cache.held(kept.map((t) => t.id)); // tokens in the KV cache, which need no prefill
  abort = new AbortController();
  let waiting = false;
  meter.rest();
  const shown = () => {
    waiting = false;
    tokens.value = [...list, ...recordedAfter(list)];
  };
  try {
    const result = await glgpt.generate({
      ids: kept.map((t) => t.id),
      tokens: count,
      drawn: kept.filter((t) => !t.given).length,
      ...sampling(),
      alternatives: WEIGHED,
      signal: abort.signal,
      onToken: (token) => {
        list.push({ ...token, label: label(token.id), given: false });
        if (!meter.due(token.more) || waiting) return;
        waiting = true;
        const read = list.length - glgpt.model.context.readFrom(list.length);
        listeners.forEach((listen) => listen(read));
        requestAnimationFrame(shown);
      },
    });
    const decoded = result.ids.length - 1;
    if (result.stopped === "text") end(list, kept.length, result.text.length);
    speeds.value = decoded < 0 ? null : {
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
    note.value = ends[result.stopped];
  } finally {
    recorded.value = null; // replaced by the model's own text
    shown();
    running.value = false;
    abort = null;
  }
}

/** Returns the rest of the recorded text if it begins with these tokens: it stays visible until the model has caught up. */
function recordedAfter(list: readonly Tok[]): readonly Tok[] {
  const all = recorded.value?.tokens ?? [];
  return list.every((tok, i) => tok.id === all[i]?.id) ? all.slice(list.length).map((tok) => ({ ...tok, given: false })) : [];
}

/** Generates several continuations of the prompt; the text itself stays. */
export async function writeSeveral(): Promise<void> {
  await stop();
  abort = new AbortController();
  const { signal } = abort;
  const restore = [prompt, ...Object.values(settings)].map((setting: Signal<string | number>) => {
    const { value } = setting;
    return () => (setting.value = value);
  });
  batch(() => {
    running.value = true;
    several.value = [];
    asked = () => restore.forEach((set) => set());
    severalRate.value = 0;
    severalNote.value = "Preparing…";
  });
  meter.rest();
  let [begun, waiting] = [0, false];
  const show = (texts: readonly Continuation[]) => {
    waiting = false;
    several.value = texts.map((text) => ({ ...text }));
  };
  try {
    const texts = await glgpt.continuations({
      ids: promptIds(),
      tokens: settings.tokens.value,
      ...sampling(),
      signal,
      onCompiled: (compiled, shaders) => (severalNote.value = `Compiling shaders ${compiled} of ${shaders}`),
      onTexts: (texts) => {
        if (!begun) [begun, severalNote.value] = [performance.now(), "Writing…"];
        if (!meter.due() || waiting) return;
        waiting = true;
        requestAnimationFrame(() => show(texts));
      },
    });
    const after = texts.reduce((sum, { ids }) => sum + Math.max(0, ids.length - 1), 0); // first tokens come from the prefill
    severalRate.value = after ? (1000 * after) / (performance.now() - begun) : 0;
    severalNote.value = signal.aborted ? "Stopped." : "";
    show(texts);
  } catch (error) {
    severalNote.value = error instanceof Error ? error.message : String(error);
  } finally {
    running.value = false;
    abort = null;
  }
}

let asked: () => void = () => {}; // restores the prompt and the settings that the continuations were requested with

/** Generates one of the continuations again as the text, with alternatives and probabilities. */
export async function readContinuation(seed: number): Promise<void> {
  batch(() => {
    asked();
    settings.seed.value = seed;
  });
  await write();
}

/** Removes the continuations and frees their memory on the device. */
export function closeSeveral(): void {
  several.value = null;
  void glgpt.borrow((model) => {
    model.batch.close();
    return Promise.resolve();
  });
}

/** Returns the sampling options of the settings. */
export function sampling() {
  return {
    temperature: settings.temperature.value,
    topK: settings.topK.value || null,
    topP: settings.topP.value < 1 ? settings.topP.value : null,
    minP: settings.minP.value || null,
    repetitionPenalty: settings.repetitionPenalty.value === 1 || glgpt.model.split ? null : settings.repetitionPenalty.value, // a split server does not support it
    seed: settings.seed.value,
    ...(settings.stop.value ? { stop: settings.stop.value } : {}),
  };
}

/** Truncates the text after token `from` to `length` characters, to hide the stop text. */
function end(list: Tok[], from: number, length: number): void {
  let at = from;
  for (let left = length; at < list.length && left > 0; at++) {
    const tok = list[at]!;
    if (tok.text.length > left) list[at] = { ...tok, text: tok.text.slice(0, left) };
    left -= tok.text.length;
  }
  list.length = at;
}

/** Computes alternatives for a token of the prompt that is pointed at; generated tokens have them already. */
async function weigh(): Promise<void> {
  const [at, list] = [chosen.value, tokens.value];
  const tok = at ? list[at] : undefined; // the first token has no context to predict it from
  if (!at || !tok || tok.top || running.value || view.value !== "text") return;
  await glgpt
    .borrow(async (model) => {
      if (chosen.value !== at || tokens.value !== list) return;
      const { p, top } = await probabilities(model, list.map((t) => t.id), at, WEIGHED);
      if (p !== undefined && top) tokens.value = tokens.value.map((t) => (t === tok ? { ...t, p, top } : t));
    })
    .catch((error: unknown) => (note.value = error instanceof Error ? error.message : String(error)));
}

/** Switches every tab to another model. */
export async function use(which: Used, files: readonly File[] = []): Promise<void> {
  if (switching.value || (which === used.value && !files.length)) return;
  refused.value = "";
  switching.value = "Preparing the model…";
  try {
    const { training } = glgpt;
    if (which === "mine" && !training.session && !(await training.restore())) {
      show("train");
      throw new Error("No model has been trained here yet. Choose a text and press Start.");
    }
    if (which === "file" && files.length) opened = files;
    await stop();
    await glgpt.use(which, opened, (compiled, shaders) => (switching.value = `Compiling shaders ${compiled} of ${shaders}`));
  } catch (error) {
    refused.value = error instanceof Error ? error.message : String(error);
  }
  switching.value = "";
}

let opened: readonly File[] = []; // files of the last model that was opened
const texts = new Map<Used, { prompt: string; tokens: number }>(); // the prompt and length for each model

/** Shows the model that replaced the previous one. */
function another(): void {
  texts.set(used.value, { prompt: prompt.value, tokens: settings.tokens.value });
  batch(() => {
    used.value = glgpt.used;
    if (used.value === "file") fileName.value = glgpt.model.manifest.model;
    const asked = texts.get(used.value);
    prompt.value = asked?.prompt ?? shorter(prompt.value);
    settings.tokens.value = asked?.tokens ?? settings.tokens.value;
    interventions.value = [];
    applied.value = intervening.value = "";
    before.value = several.value = null;
    tokens.value = [];
    chosen.value = speeds.value = null;
    model.value++;
    fit();
  });
  void write();
}

/** Returns the last lines of a prompt that fit half the context, so that there is room to write. */
function shorter(text: string): string {
  const ids = known(() => glgpt.encode(text));
  const most = Math.max(1, Math.floor(glgpt.model.manifest.config.n_positions / 2));
  return ids.length > most ? glgpt.decode(ids.slice(-most)).replace(/^[^\n]*\n+(?=.)/, "") : text;
}

export async function stop(): Promise<void> {
  while (running.value) {
    abort?.abort(); // also a generation that began during the wait: the last request wins
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

async function attempt(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    running.value = false;
    note.value = error instanceof Error ? error.message : String(error);
  }
}
