// State and actions of the "Together" panel.

import { follow } from "../../stores/throttled";
import { signal } from "@preact/signals";
import type { FederationState } from "../../../training/federate";
import { tabStorage } from "../../../runtime/io/storage";
import type { AnyParam } from "../../stores/link";
import { engine } from "../../stores/model";

const KEY = "glgpt together"; // in the tab's storage, so that a reload of this tab rejoins
const FRAME_MS = 100; // ms between two updates of the panel

interface Remembered {
  link: string;
  name: string;
  joined: boolean;
}

class FederatedStore {
  readonly link = signal("");
  readonly name = signal("");
  readonly text = signal("");
  readonly source = signal("");
  readonly problem = signal("");
  /** The state of the federation as shown, updated at most every `FRAME_MS` ms; null before a federation is joined. */
  readonly federation = signal<FederationState | null>(null);
  /** True if the page was opened with an invitation. */
  readonly invited = signal(false);
  private opened = false;

  /** True while this device takes part in a federation. */
  together(): boolean {
    return this.federation.value !== null && !["over", "failed"].includes(this.federation.value.status);
  }

  /** Stores the invitation in this tab. `joined`: a reload of the tab rejoins, unless the browser has no storage. */
  private remember(joined: boolean): void {
    tabStorage.write(KEY, { link: this.link.value, name: this.name.value, joined } satisfies Remembered);
  }

  /**
   * The first call fills in the name that this tab has stored, and the stored invitation unless the address has one. If
   * a reload of the tab interrupted a federation, rejoins it unless the address has another invitation. Further calls
   * do nothing.
   */
  open(): void {
    if (this.opened) return;
    this.opened = true;
    follow(
      this.federation,
      () => {
        const joined = engine().federation;
        return { source: joined, value: joined?.state.value ?? null };
      },
      FRAME_MS,
    );
    const kept = tabStorage.read(KEY) as Remembered | null;
    if (!kept) return;
    const same = !this.link.value || this.link.value === kept.link;
    this.link.value ||= kept.link;
    this.name.value = kept.name;
    if (kept.joined && same && !engine().federation) this.join();
  }

  join(): void {
    this.problem.value = "";
    const { origin } = URL.canParse(this.link.value) ? new URL(this.link.value) : location;
    if (origin !== location.origin) {
      this.problem.value =
        "This invitation is from another host, which this page cannot join. " +
        `Open the invitation link itself: the page at ${origin} can join.`;
      return;
    }
    this.remember(true);
    const own = this.text.value ? { text: this.text.value } : {};
    engine()
      .federate({ link: this.link.value, name: this.name.value, ...own })
      .catch((error: unknown) => {
        this.problem.value = error instanceof Error ? error.message : String(error);
        this.remember(false);
      });
  }

  leave(): void {
    this.remember(false);
    engine().federation?.leave();
  }

  /** Reads the first of the files as this device's text. */
  async take(files: Iterable<File>): Promise<void> {
    const [file] = files;
    if (!file) return;
    try {
      this.text.value = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
      this.source.value = file.name;
      this.problem.value = "";
    } catch {
      this.problem.value = `${file.name} is not UTF-8 text.`;
    }
  }
}

export const federated = new FederatedStore();

/** The invitation that a link to this page carries. It is read from the page's address, but never written to it. */
export const INVITATION: AnyParam = {
  key: "together",
  history: false,
  read: (link) => {
    if (!link.has("together")) return;
    federated.link.value = location.href;
    federated.invited.value = true;
  },
  write: () => null,
};
