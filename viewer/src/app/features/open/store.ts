// The start screen of a page without weights: opens files, links and stored copies, and loads the chosen model.

import { signal } from "@preact/signals";
import { connections, folder, playerFile } from "../../../document";
import { allowedLink, fetched, modelLink } from "../../../runtime/engine/model-link";
import { openable, type Openable, type Opened } from "../../../runtime/engine/opened-model";
import { parsePlayer } from "../../../runtime/engine/player-files";
import type { PlayerDocument } from "../../../runtime/generated/player";
import { HttpSource } from "../../../runtime/engine/source";
import { keepModel, keptModels, openKept, removeKept, type Kept } from "../../../runtime/engine/kept-models";
import { PageError, reason } from "../../../runtime/gl/errors";
import { megabytes } from "../../../runtime/io/fetch-stream";
import { models } from "../../stores/model";

const MAX_LIST = 64 << 20; // maximum bytes of player.json

class OpenStore {
  /** The names of the shapes (architectures with their sizes) that the page has programs for. */
  readonly shapes = signal<readonly string[]>([]);
  /** The work in progress; "": none. */
  readonly doing = signal("");
  /** Share of a download or a copy that is done; null: not known. */
  readonly share = signal<number | null>(null);
  readonly problem = signal("");
  /** The model whose files were opened and which can be loaded; null: none. */
  readonly found = signal<Openable | null>(null);
  /**
   * The address of the model that the link to this page names. null: the link names none, the model was fetched, the
   * visitor declined, or files were opened.
   */
  readonly link = signal<URL | null>(null);
  /** The models in this browser's storage; if `keep` is true, the model that is loaded next is added to them. */
  readonly kept = signal<readonly Kept[]>([]);
  readonly keep = signal(false);
  /** True if the files of `found` come from this browser's storage. */
  readonly isKept = signal(false);
  private index: PlayerDocument | null = null;
  private files: readonly File[] = [];
  private stop: AbortController | null = null;
  private loaded: (opened: Opened) => void = () => {};

  /** Shows the start screen. `loaded` is called with the model that the visitor loads. */
  begin(loaded: (opened: Opened) => void): void {
    this.loaded = loaded;
    models.phase.value = "choosing";
    void this.attempt(async () => {
      this.kept.value = await keptModels();
      const list = await this.list();
      this.shapes.value = list.shapes.map(({ name }) => name);
      this.link.value = modelLink(location.search);
    });
  }

  private async list(): Promise<PlayerDocument> {
    if (!this.index) {
      const bytes = await new HttpSource(folder()).bytes(playerFile()!, MAX_LIST);
      this.index = parsePlayer(JSON.parse(new TextDecoder().decode(bytes)));
    }
    return this.index;
  }

  /** Runs `work`, with `doing` as the description of the work in progress. */
  private async run(doing: string, work: () => Promise<void>): Promise<void> {
    this.doing.value = doing;
    await this.attempt(work);
    this.doing.value = "";
    this.share.value = null;
  }

  /** Runs `work` and shows its error, if any. */
  private async attempt(work: () => Promise<void>): Promise<void> {
    this.problem.value = "";
    try {
      await work();
    } catch (error) {
      this.problem.value =
        error instanceof PageError ? error.message : `${reason(error)}. This is an unexpected error: reload the page.`;
    }
  }

  /** Reads the headers of a model's files, and shows the memory that the model needs. */
  open(files: readonly File[]): Promise<void> {
    if (this.doing.value || !files.length) return Promise.resolve();
    this.found.value = null;
    return this.run("Reading the file's header", async () => {
      await this.find(files);
      this.link.value = null;
    });
  }

  /** Reads the headers of a model's files, which come from this browser's storage if `kept` is true. */
  private async find(files: readonly File[], kept = false): Promise<void> {
    this.files = files;
    this.found.value = await openable(files, await this.list(), folder());
    this.isKept.value = kept;
  }

  /** Loads the model that was found. If `keep` is set, stores a copy of its files first. */
  load(): Promise<void> {
    const { value: found } = this.found;
    if (!found || this.doing.value) return Promise.resolve();
    const keeps = this.keep.value;
    return this.run("", async () => {
      if (keeps) await this.store(found);
      this.loaded(found.open());
      models.phase.value = "loading";
    });
  }

  private async store(found: Openable): Promise<void> {
    this.doing.value = `Keeping a copy of ${found.title}`;
    await keepModel(this.files, found.title, (done, total) => (this.share.value = done / total));
  }

  /** Fetches the model of the link, after the visitor has agreed. */
  fetch(): Promise<void> {
    const { value: url } = this.link;
    if (!url || this.doing.value) return Promise.resolve();
    return this.run(`Fetching from ${url.host}`, async () => {
      allowedLink(url, connections());
      this.stop = new AbortController();
      const file = await fetched(url, this.stop.signal, (done, total) => {
        this.share.value = total ? done / total : null;
        this.doing.value = `Fetching from ${url.host}: ${megabytes(done)}${total ? ` of ${megabytes(total)}` : ""}`;
      });
      this.doing.value = "Reading the file's header";
      await this.find([file]);
      this.link.value = null;
    }).finally(() => (this.stop = null));
  }

  /** True while a download runs. `cancel` ends the download. */
  get fetching(): boolean {
    return this.doing.value.startsWith("Fetching");
  }

  cancel(): void {
    this.stop?.abort();
  }

  /** Forgets the link, the model that was found, and the error. */
  reset(): void {
    this.link.value = null;
    this.found.value = null;
    this.problem.value = "";
  }

  openKept(model: Kept): Promise<void> {
    if (this.doing.value) return Promise.resolve();
    return this.run("Reading the file's header", async () => {
      await this.find(await openKept(model), true);
      this.keep.value = false;
    });
  }

  removeKept(model: Kept): Promise<void> {
    return this.attempt(async () => {
      await removeKept(model);
      this.kept.value = await keptModels();
    });
  }
}

export const opening = new OpenStore();
