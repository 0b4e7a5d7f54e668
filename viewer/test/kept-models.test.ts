// Tests the storage of models that the visitor keeps.

import { beforeEach, expect, it, vi } from "vitest";
import { keepModel, keptModels, openKept } from "../src/runtime/engine/kept-models";

/** Replaces a folder of the browser's private file system. Holds the files in memory. */
class Folder {
  readonly kind = "directory";
  private readonly entries = new Map<string, Folder | Entry>();

  constructor(readonly name: string) {}

  private entry<T extends Folder | Entry>(name: string, create: boolean | undefined, made: () => T): Promise<T> {
    if (create && !this.entries.has(name)) this.entries.set(name, made());
    const found = this.entries.get(name) as T | undefined;
    return found ? Promise.resolve(found) : Promise.reject(new DOMException(name, "NotFoundError"));
  }

  getDirectoryHandle = (name: string, { create }: { create?: boolean } = {}) =>
    this.entry(name, create, () => new Folder(name));
  getFileHandle = (name: string, { create }: { create?: boolean } = {}) =>
    this.entry(name, create, () => new Entry(name));
  removeEntry = (name: string) => Promise.resolve(void this.entries.delete(name));

  async *values(): AsyncGenerator<Folder | Entry> {
    await Promise.resolve();
    yield* [...this.entries.values()];
  }
}

class Entry {
  readonly kind = "file";
  private parts: Uint8Array<ArrayBuffer>[] = [];

  constructor(readonly name: string) {}

  getFile = () => Promise.resolve(new File(this.parts, this.name));
  createWritable = () => {
    const parts: Uint8Array<ArrayBuffer>[] = [];
    return Promise.resolve(
      new WritableStream<Uint8Array<ArrayBuffer>>({
        write: (part) => void parts.push(part),
        close: () => void (this.parts = parts),
      }),
    );
  };
}

let root: Folder;
const held = new Set<string>(); // names of the held locks
const locks = {
  request: async (name: string, _: object, work: (lock: object | null) => unknown) => {
    if (held.has(name)) return work(null);
    held.add(name);
    return Promise.resolve(work({})).finally(() => held.delete(name));
  },
};

beforeEach(() => {
  root = new Folder("");
  const storage = { getDirectory: () => Promise.resolve(root), estimate: () => Promise.resolve({}) };
  vi.stubGlobal("navigator", { storage, locks });
});

const folderOf = (text: string) => [new File([text], "model.safetensors"), new File(["{}"], "config.json")];
const keep = (files: File[], title = "tiny") => keepModel(files, title, () => {});

it("keeps two models whose files have the same names", async () => {
  await Promise.all([keep(folderOf("first")), keep(folderOf("second"))]);
  const kept = await keptModels();
  expect(kept.map(({ name }) => name)).toEqual(["tiny", "tiny (2)"]);
  const files = await Promise.all(kept.map(openKept));
  expect(await Promise.all(files.map((own) => own[0]!.text()))).toEqual(["first", "second"]);
});

it("keeps a model once, although it is given again", async () => {
  await keep(folderOf("first"));
  await keep(folderOf("first"));
  await keep(folderOf("other"));
  expect((await keptModels()).map(({ name }) => name)).toEqual(["tiny", "tiny (2)"]);
});

it("names a copy after a GGUF file, or after the title as a valid name of a folder", async () => {
  await keep([new File(["a"], "a-Q4_K_M.gguf")], "A");
  await keep(folderOf("b"), "../b");
  await keep(folderOf("c"), "");
  expect((await keptModels()).map(({ name }) => name)).toEqual(["__b", "a-Q4_K_M.gguf", "model"]);
});

it("lists only complete models, and does not remove a copy that another tab is making", async () => {
  await keep(folderOf("first"), "a");
  const slow = new File(["second"], "model.safetensors");
  let go = () => {};
  const gate = new Promise<void>((resolve) => (go = resolve));
  const gated = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform: (chunk, out) => gate.then(() => out.enqueue(chunk)),
  });
  const read = vi.spyOn(slow, "stream").mockReturnValue(new Blob(["second"]).stream().pipeThrough(gated));
  const copy = keep([slow], "b");
  await vi.waitFor(() => expect(read).toHaveBeenCalled());
  expect((await keptModels()).map(({ name }) => name)).toEqual(["a"]);
  go();
  await copy;
  expect((await keptModels()).map(({ name }) => name)).toEqual(["a", "b"]);
});

it("removes an interrupted copy before a copy with the same name is made", async () => {
  const all = await root.getDirectoryHandle("glgpt-models", { create: true });
  const interrupted = await all.getDirectoryHandle("tiny", { create: true });
  await interrupted.getFileHandle("other.safetensors", { create: true });
  await keep(folderOf("whole"));
  const [found] = await keptModels();
  expect((await openKept(found!)).map(({ name }) => name)).toEqual(["model.safetensors", "config.json"]);
});
