// The text to train on: its source, its clean-up, and the preparation in progress.

import { signal } from "@preact/signals";
import { CLEANING, type CleaningStep, type Inspection, type Removed } from "../../../training/cleaning";
import type { FetchedText } from "../../../training/fetching";
import { tabStorage } from "../../../runtime/io/storage";
import { prepared } from "../../../training/prepare";
import { engine } from "../../stores/model";
import { SettingsStore } from "./settings";

export const LONG = 200_000; // maximum characters of an editable text
export const HELD = 0.1; // share of the text that is held out for validation
export const TYPED = "typed"; // the source of a typed or pasted text, as written to the files of a training

/** Reports what is being prepared, and the share that is done (null: unknown). `what`: null when it has ended. */
export type Busy = (what: string | null, share?: number | null) => void;

/**
 * The visitor's choice of a text, which may still have to be read. `make` makes the choice final and discards all
 * earlier choices. `replaced` returns true once a later choice is made.
 */
interface Choice {
  make: () => void;
  replaced: () => boolean;
}

export class TextStore extends SettingsStore {
  /** The text to train on, after clean-up. */
  readonly text = signal("");
  readonly source = signal("");
  readonly documents = signal<string[]>([]);
  readonly cleaning = signal<readonly CleaningStep[]>(CLEANING);
  readonly removed = signal<Removed[]>([]);
  readonly inspection = signal<Inspection | null>(null);
  /** The preparation in progress, and the share that is done (null: unknown). `problem`: the last error message. */
  readonly preparing = signal<{ what: string; share: number | null } | null>(null);
  readonly problem = signal("");
  /** The download in progress: bytes received, bytes in total (0: unknown), and why the download is retried. */
  readonly fetching = signal<{ what: string; done: number; total: number; again: string } | null>(null);
  readonly encoding = signal("utf-8");
  /** Resolves when the latest text is cleaned up. */
  protected cleaned: Promise<void> = Promise.resolve();
  private asked = 0; // number of texts whose clean-up has begun
  private choices = 0; // number of choices that have begun
  private latest = 0; // number of the last choice that was made
  private stopFetching: AbortController | null = null;
  private fetched: FetchedText | null = null; // the last fetched text, with its source

  /** Begins the choice of a text that must be read first. Earlier choices continue until this one is made. */
  protected beginChoice(): Choice {
    const mine = ++this.choices;
    const make = () => {
      this.latest = mine;
      this.cancelFetching();
    };
    return { make, replaced: () => mine < this.latest };
  }

  /**
   * Begins and makes the choice of a text: texts of earlier choices that still load are ignored, and a running download
   * ends. Returns a function that returns true once a later choice is made.
   */
  protected chooseText(): () => boolean {
    const { make, replaced } = this.beginChoice();
    make();
    return replaced;
  }

  /** Sets the documents to train on and cleans them up. */
  readonly put = (...args: Parameters<TextStore["prepare"]>): Promise<void> => {
    this.chooseText();
    return this.prepare(...args);
  };

  /** Replaces the text with one that the visitor types or pastes. */
  readonly type = (text: string) => this.attempt(() => this.put([text], ""));

  private readonly typedKey = () => `glgpt training text ${location.pathname}`;
  private readonly stepsKey = () => `glgpt training clean-up ${location.pathname}`;

  /** Returns the typed text that was shown before a reload, and its clean-up steps; null if there was none. */
  protected typed(): { text: string; steps: CleaningStep[] } | null {
    const text = tabStorage.readText(this.typedKey());
    const steps = tabStorage.readText(this.stepsKey()).split(",");
    return text ? { text, steps: CLEANING.filter((step) => steps.includes(step)) } : null;
  }

  /** Does the same as `put`, for a choice that was made already. */
  protected prepare(
    from: string[],
    named: string,
    kind = "",
    steps: readonly CleaningStep[] = this.cleaning.value,
  ): Promise<void> {
    this.documents.value = from;
    this.source.value = named;
    this.set.value = kind;
    this.cleaning.value = steps;
    tabStorage.writeText(this.typedKey(), named || kind ? "" : (from[0] ?? ""));
    tabStorage.writeText(this.stepsKey(), steps.join());
    const mine = ++this.asked;
    this.cleaned = prepared(from, steps, HELD).then((found) => {
      if (mine !== this.asked) return; // another text replaced this one
      this.text.value = found.text;
      this.removed.value = found.removed;
      this.inspection.value = found.inspection;
    });
    return this.cleaned;
  }

  /** Replaces the text with a data set. */
  readonly takeSet = (name: string) =>
    this.attempt(async (busy) => {
      busy("Loading the text");
      await this.putSet(name);
    });

  protected async putSet(name: string): Promise<void> {
    const replaced = this.chooseText();
    const { about } = this.index.value!.texts.find((found) => found.name === name)!;
    const text = await engine().training.offers.bundled(name);
    if (!replaced()) await this.prepare([text], about, name);
  }

  /** Fetches a text that the visitor requested, and replaces the current text with it. */
  readonly fetchFrom = (address: string, title = "", read = this.encoding.value) =>
    this.attempt(async () => {
      if (this.fetching.value) return;
      const replaced = this.chooseText();
      const stop = (this.stopFetching = new AbortController());
      const show = (change: Partial<{ done: number; total: number; again: string }>) =>
        (this.fetching.value = {
          what: title || address,
          done: 0,
          total: 0,
          again: "",
          ...this.fetching.value,
          ...change,
        });
      show({});
      try {
        const found = await engine().fetchText(address, {
          encoding: read,
          signal: stop.signal,
          onBytes: (done, total) => show({ done, total, again: "" }),
          onRetry: (again) => show({ again }),
        });
        if (replaced()) return;
        if (engine().training.session) throw new Error("Reset the training first: another text needs a new training.");
        this.fetched = found;
        await this.prepare([found.text], title || found.source);
      } catch (error) {
        if (!replaced()) throw error;
      } finally {
        this.fetching.value = this.stopFetching = null;
      }
    });

  readonly cancelFetching = () => this.stopFetching?.abort();

  /** Runs an action and shows its error, if any. Keeps the progress message of another action that is still running. */
  protected async attempt(work: (busy: Busy) => Promise<void> | void): Promise<void> {
    this.problem.value = "";
    let said: { what: string; share: number | null } | null = null;
    const busy: Busy = (what, share = null) => {
      if (what !== null) this.preparing.value = said = { what, share };
      else if (this.preparing.value === said) this.preparing.value = null;
    };
    try {
      await work(busy);
    } catch (error) {
      this.problem.value = error instanceof Error ? error.message : String(error);
    }
    busy(null);
  }

  /** Switches a clean-up step on or off. */
  readonly clean = (step: CleaningStep, on: boolean) =>
    this.attempt(() =>
      this.prepare(
        this.documents.value,
        this.source.value,
        this.set.value,
        CLEANING.filter((s) => (s === step ? on : this.cleaning.value.includes(s))),
      ),
    );

  /** Returns the source of the text, for the files of a training. */
  protected origin() {
    const came = this.fetched && this.documents.value[0] === this.fetched.text ? this.fetched : null;
    const named = this.set.value ? `glgpt ${this.set.value}` : this.source.value || TYPED;
    return { source: came?.source ?? named, date: came?.date ?? null, cleaned: [...this.cleaning.value] };
  }
}
