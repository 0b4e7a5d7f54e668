// What the "Together" panel shows, and what a person can do with it.

import { throttled } from "../tools";
import { signal } from "@preact/signals";
import type { Federation } from "../../training/federate";
import { engine } from "../state";

const KEY = "glgpt together"; // of this tab: a reload continues
const FRAME = 100; // ms between two changes of the figures

export const link = signal("");
export const name = signal("");
export const text = signal("");
export const source = signal("");
export const problem = signal("");
export const federation = signal<Federation | null>(null);
/** Counts the changes of the federation that the page has shown. */
export const tick = signal(0);

let opened = false;

// Taken before the page writes its own settings behind the `#`.
if (new URLSearchParams(location.hash.slice(1)).has("together")) link.value = location.href;
/** Whether the page was opened by an invitation. */
export const invited = signal(Boolean(link.value));

/** Whether this device trains with others now. */
export function together(): boolean {
  void tick.value;
  return federation.value !== null && !["over", "failed"].includes(federation.value.status);
}

interface Remembered {
  link: string;
  name: string;
  joined: boolean;
}

function remember(joined: boolean): void {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ link: link.value, name: name.value, joined } satisfies Remembered));
  } catch {
    // a browser that keeps nothing: a reload begins anew
  }
}

/** Once, when the panel is first shown: the invitation of the address, or the session that a reload interrupted. */
export function open(): void {
  if (opened) return;
  opened = true;
  const glgpt = engine();
  glgpt.onFederation = adopt;
  adopt();
  let kept: Remembered | null = null;
  try {
    kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Remembered | null;
  } catch {
    // another's
  }
  if (!kept) return;
  const same = !link.value || link.value === kept.link;
  link.value ||= kept.link;
  name.value = kept.name;
  if (kept.joined && same && !federation.value) join();
}

function adopt(): void {
  const found = engine().federation;
  federation.value = found;
  if (found) found.onChange = changed;
  tick.value++;
}

const changed = throttled(() => void tick.value++, FRAME);

export function join(): void {
  problem.value = "";
  if (URL.canParse(link.value) && new URL(link.value).origin !== location.origin) {
    problem.value = `This invitation is of another host: open it as a page of its own, ${new URL(link.value).origin} does not admit this one.`;
    return;
  }
  remember(true);
  const own = text.value ? { text: text.value } : {};
  engine()
    .federate({ link: link.value, name: name.value, ...own })
    .catch((error: unknown) => {
      problem.value = error instanceof Error ? error.message : String(error);
      remember(false);
    });
}

export function leave(): void {
  remember(false);
  federation.value?.leave();
}

/** A text file of one's own. */
export async function take(files: Iterable<File>): Promise<void> {
  const [file] = files;
  if (!file) return;
  try {
    text.value = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
    source.value = file.name;
    problem.value = "";
  } catch {
    problem.value = `${file.name} is not UTF-8 text.`;
  }
}
