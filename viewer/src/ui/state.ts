// What the page shows, and what a person can do with it.

import { batch, computed, effect, signal } from "@preact/signals";
import type { Glgpt } from "../api";
import { KINDS, type Kind } from "./drawing/attention";
import type { Progress } from "../engine/loader";
import type { Candidate } from "../engine/sampling";

export interface Tok {
  id: number;
  text: string;
  label: string;
  given: boolean;
  p?: number;
  top?: Candidate[];
}

export const VIEWS = ["text", "attention", "blocks", "textures", "passes", "train", "device"] as const;
export type ViewName = (typeof VIEWS)[number];

export const SAMPLE = "JULIET:\nO Romeo, Romeo! wherefore art thou Romeo?\n\nROMEO:\n";
const link = new URLSearchParams(location.hash.slice(1));
const number = (key: string, otherwise: number) => {
  const text = link.get(key);
  return text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : otherwise;
};

const whole = (key: string) => Math.max(0, Math.floor(number(key, 0)));

export const phase = signal<"loading" | "ready" | "failed">("loading");
export const failure = signal("");
export const progress = signal<Progress & { speed: number }>({ done: 0, total: 0, cached: 0, speed: 0 });
export const view = signal<ViewName>(VIEWS.find((v) => v === link.get("view")) ?? "text");
export const prompt = signal(link.get("prompt") ?? SAMPLE);
export const settings = {
  tokens: signal(number("tokens", 120)),
  temperature: signal(number("temperature", 0.8)),
  topK: signal(number("k", 0)),
  topP: signal(number("p", 0.9)), // fewer words that are none
  seed: signal(number("seed", 1)),
  stop: signal(link.get("stop") ?? ""),
};
/** Where in a view one is; a link carries it. */
export const place = {
  layer: signal(whole("layer")),
  head: signal(whole("head")),
  kind: signal<Kind>(KINDS.find((kind) => kind === link.get("kind")) ?? "pattern"),
  texture: signal(link.get("texture") ?? "embed"),
  entry: signal(link.get("entry") ?? "decode"),
  pass: signal(whole("pass")),
};
export const tokens = signal<Tok[]>([]);
export const running = signal(false);
export const note = signal("");
export const speeds = signal<{ prefill: number; decode: number; given: number } | null>(null);
export const chosen = signal<number | null>(null);
/** The browser has taken the graphics context away. */
export const lost = signal(false);
export const ids = computed(() => tokens.value.map((t) => t.id));
/** Called for every token while one is generated, before the page shows it. */
export const listeners = new Set<(total: number) => void>();

const WEIGHED = 8; // alternatives of each token
const FRAME = 40; // ms between two changes of the text: drawing the page takes time from a software driver
let glgpt: Glgpt;
let abort: AbortController | null = null;

export const engine = (): Glgpt => glgpt;

export function start(instance: Glgpt): void {
  glgpt = instance;
  const began = performance.now();
  glgpt.onProgress = (p) => {
    const seconds = (performance.now() - began) / 1000;
    progress.value = { ...p, speed: (p.done - p.cached) / Math.max(seconds, 0.01) };
  };
  glgpt.ready.then(
    () => {
      glgpt.model.device.onLost = (now) => (lost.value = now);
      const { n_layer, n_head } = glgpt.model.manifest.config;
      place.layer.value = Math.min(place.layer.value, n_layer - 1);
      place.head.value = Math.min(place.head.value, n_head - 1);
      phase.value = "ready";
      effect(share); // the address follows every setting
      effect(() => void weigh());
      addEventListener("hashchange", () => location.reload()); // another link was pasted
      document.title = `${glgpt.model.manifest.model} · glgpt`;
      if (!glgpt.model.tokenizer && !link.has("prompt")) prompt.value = "1 2 3";
      void write();
    },
    (error: unknown) => {
      failure.value = error instanceof Error ? error.message : String(error);
      phase.value = "failed";
    },
  );
}

export function share(): void {
  const fields: Record<string, string> = {
    view: view.value,
    prompt: prompt.value,
    tokens: String(settings.tokens.value),
    temperature: String(settings.temperature.value),
    k: String(settings.topK.value),
    p: String(settings.topP.value),
    seed: String(settings.seed.value),
  };
  if (settings.stop.value) fields["stop"] = settings.stop.value;
  const { layer, head, kind, texture, entry, pass } = place;
  if (view.value === "attention")
    Object.assign(fields, { layer: String(layer.value), head: String(head.value), kind: kind.value });
  if (view.value === "textures") fields["texture"] = texture.value;
  if (view.value === "passes") Object.assign(fields, { entry: entry.value, pass: String(pass.value) });
  history.replaceState(null, "", `#${new URLSearchParams(fields)}`);
}

export function show(name: ViewName): void {
  view.value = name;
  scrollTo({ top: 0 });
}

/** Goes to a texture, named as in the list of the view. */
export function showTexture(name: string): void {
  place.texture.value = name;
  show("textures");
}

function given(list: readonly number[]): Tok[] {
  const decoder = glgpt.model.tokenizer?.stream();
  return list.map((id) => ({ id, text: decoder ? decoder.push(id) : ` ${id}`, label: label(id), given: true }));
}

export function label(id: number): string {
  return glgpt.model.tokenizer?.label(id) ?? String(id);
}

function promptIds(): number[] {
  if (glgpt.model.tokenizer) return glgpt.encode(prompt.value);
  return (prompt.value.match(/\d+/g) ?? []).map(Number);
}

/** Writes on from the prompt. */
export async function write(): Promise<void> {
  await attempt(async () => {
    const list = promptIds();
    glgpt.model.check(list);
    tokens.value = given(list);
    await go(settings.tokens.value);
  });
}

/** Goes on with `count` tokens behind token `from` (default: the last), whose place `instead` takes if it is given. */
export async function go(count: number, from?: number, instead?: number): Promise<void> {
  await attempt(async () => {
    await stop();
    let kept = from === undefined ? tokens.value : tokens.value.slice(0, from);
    if (instead !== undefined) {
      const was = tokens.value[from ?? 0];
      const top = was?.top;
      const p = top?.find((c) => c.id === instead)?.p;
      const text = glgpt.decode([instead]);
      kept = [
        ...kept,
        { id: instead, text, label: label(instead), given: false, ...(top && p !== undefined ? { top, p } : {}) },
      ];
    }
    if (!kept.length) return;
    batch(() => {
      tokens.value = kept;
      chosen.value = null;
      running.value = true;
      note.value = "";
    });
    await stream(count, kept);
  });
}

async function stream(count: number, kept: Tok[]): Promise<void> {
  const list = [...kept];
  const held = glgpt.model.held(kept.map((t) => t.id)); // and so not read again
  const seed = settings.seed.value;
  abort = new AbortController();
  let waiting = false;
  const shown = () => {
    waiting = false;
    tokens.value = [...list];
  };
  try {
    const result = await glgpt.generate({
      ids: kept.map((t) => t.id),
      tokens: count,
      drawn: kept.filter((t) => !t.given).length,
      temperature: settings.temperature.value,
      topK: settings.topK.value || null,
      topP: settings.topP.value < 1 ? settings.topP.value : null,
      seed,
      ...(settings.stop.value ? { stop: settings.stop.value } : {}),
      alternatives: WEIGHED,
      signal: abort.signal,
      onToken: ({ id, text, p, top }) => {
        list.push({ id, text, label: label(id), given: false, ...(top && p !== undefined ? { p, top } : {}) });
        listeners.forEach((listen) => listen(list.length));
        if (!waiting) {
          waiting = true;
          setTimeout(() => requestAnimationFrame(shown), FRAME);
        }
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
      context: "The context is full.",
      eos: "The model ended the text.",
      text: "The stop text came up.",
      aborted: "Stopped.",
      tokens: "",
    };
    note.value = ends[result.stopped];
  } finally {
    shown();
    running.value = false;
    abort = null;
  }
}

/** Cuts the text behind token `from` to `length` characters: a stop text is not shown. */
function end(list: Tok[], from: number, length: number): void {
  let at = from;
  for (let left = length; at < list.length && left > 0; at++) {
    const tok = list[at]!;
    if (tok.text.length > left) list[at] = { ...tok, text: tok.text.slice(0, left) };
    left -= tok.text.length;
  }
  list.length = at;
}

/** What the model weighed in place of the token that is pointed at, where that was given and so not chosen by it. */
async function weigh(): Promise<void> {
  const [at, list] = [chosen.value, tokens.value];
  const tok = at ? list[at] : undefined; // nothing stands before the first
  if (!at || !tok || tok.top || running.value || view.value !== "text") return;
  const { n_positions } = glgpt.model.manifest.config;
  await glgpt
    .borrow(async (model) => {
      if (chosen.value !== at || tokens.value !== list) return;
      const { p, top } = await model.weighed(list.slice(0, n_positions).map((t) => t.id), at, WEIGHED);
      if (p !== undefined && top) tokens.value = tokens.value.map((t) => (t === tok ? { ...t, p, top } : t));
    })
    .catch((error: unknown) => (note.value = error instanceof Error ? error.message : String(error)));
}

export async function stop(): Promise<void> {
  while (running.value) {
    abort?.abort(); // also what began while this waited: the last choice stands
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
