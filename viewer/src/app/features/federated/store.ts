// State and actions of the "Together" panel.

import { throttled } from "../../ui/tools";
import { effect, signal, untracked } from "@preact/signals";
import type { FederationState } from "../../../training/federate";
import { tabStorage } from "../../../runtime/io/storage";
import { engine } from "../../stores/model";

const KEY = "glgpt together"; // in the tab's storage, so that a reload of this tab rejoins
const FRAME_MS = 100; // ms between two updates of the panel

export const link = signal("");
export const name = signal("");
export const text = signal("");
export const source = signal("");
export const problem = signal("");
/** The shown state of the federation, renewed at most every `FRAME_MS`; null: none was joined. */
export const federation = signal<FederationState | null>(null);

let opened = false;

// Read before the page writes its own settings after the `#`.
if (new URLSearchParams(location.hash.slice(1)).has("together")) link.value = location.href;
/** True if the page was opened with an invitation. */
export const invited = signal(Boolean(link.value));

/** True while this device takes part in a federation. */
export function together(): boolean {
  return federation.value !== null && !["over", "failed"].includes(federation.value.status);
}

interface Remembered {
  link: string;
  name: string;
  joined: boolean;
}

/** Without storage, a reload does not rejoin. */
function remember(joined: boolean): void {
  tabStorage.write(KEY, { link: link.value, name: name.value, joined } satisfies Remembered);
}

/** Called when the panel is first shown: fills in the invitation of the address, or rejoins after a reload. */
export function open(): void {
  if (opened) return;
  opened = true;
  effect(() => {
    const joined = engine().federation;
    federation.value = untracked(() => joined?.state.value ?? null);
    return joined?.state.subscribe(() => changed());
  });
  const kept = tabStorage.read(KEY) as Remembered | null;
  if (!kept) return;
  const same = !link.value || link.value === kept.link;
  link.value ||= kept.link;
  name.value = kept.name;
  if (kept.joined && same && !engine().federation) join();
}

const changed = throttled(() => (federation.value = engine().federation?.state.value ?? null), FRAME_MS);

export function join(): void {
  problem.value = "";
  if (URL.canParse(link.value) && new URL(link.value).origin !== location.origin) {
    problem.value = `This invitation is from another host, which this page cannot join. Open the link itself: ${new URL(link.value).origin} serves the page to join with.`;
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
  engine().federation?.leave();
}

/** Reads the first of the files as this device's text. */
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
