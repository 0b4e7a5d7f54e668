// Stores models that the visitor keeps in this browser (OPFS): each model has a folder with its files.

import { PageError } from "../gl/errors";

const FOLDER = "glgpt-models";
const RESERVE = 16 << 20; // bytes of storage that remain free

export interface Kept {
  name: string;
  bytes: number;
}

/** True if this browser can keep files. */
export const canKeep = () => "storage" in navigator && "getDirectory" in navigator.storage;

async function folder(): Promise<FileSystemDirectoryHandle> {
  return (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });
}

/** Returns the handles in a folder. TypeScript's DOM types lack this iterator. */
const handles = (directory: FileSystemDirectoryHandle) =>
  (directory as unknown as { values(): AsyncIterable<FileSystemHandle> }).values();

async function filesOf(directory: FileSystemDirectoryHandle): Promise<File[]> {
  const found: File[] = [];
  for await (const handle of handles(directory)) {
    if (handle.kind === "file") found.push(await (handle as FileSystemFileHandle).getFile());
  }
  return found;
}

const COMPARED = 1 << 20; // bytes at each end of two files that are compared
const DONE = ".complete"; // the file written last: a folder without it holds an interrupted copy

/** Runs `work` if no other tab works on this folder; otherwise returns null. */
const alone = <T>(name: string, work: () => Promise<T>): Promise<T | null> =>
  navigator.locks.request(`${FOLDER}/${name}`, { ifAvailable: true }, (lock) => (lock ? work() : null));

/** Returns the kept models; none if the browser has no storage. Removes interrupted copies. */
export async function keptModels(): Promise<Kept[]> {
  if (!canKeep()) return [];
  const found: Kept[] = [];
  try {
    const all = await folder();
    for await (const handle of handles(all)) {
      if (handle.kind !== "directory") continue;
      // rejects if another tab changes the folder at the same time
      const entry = await listed(all, handle as FileSystemDirectoryHandle).catch(() => null);
      if (entry) found.push(entry);
    }
  } catch {
    return found; // a private window may forbid storage
  }
  return found.sort((a, b) => a.name.localeCompare(b.name));
}

/** Returns the model in a folder; null if its copy is incomplete. Removes such a copy unless another tab writes it. */
async function listed(all: FileSystemDirectoryHandle, directory: FileSystemDirectoryHandle): Promise<Kept | null> {
  const found = await entryOf(directory);
  if (found) return found;
  return alone(directory.name, async () => {
    const completed = await entryOf(directory); // another tab may have completed the copy since the check above
    if (!completed) await all.removeEntry(directory.name, { recursive: true });
    return completed;
  });
}

/** Returns the model in a folder; null: its copy is not complete. */
async function entryOf(directory: FileSystemDirectoryHandle): Promise<Kept | null> {
  const files = await filesOf(directory);
  if (!files.some(({ name }) => name === DONE)) return null;
  return { name: directory.name, bytes: files.reduce((sum, { size }) => sum + size, 0) };
}

/**
 * Copies the files of a model to the storage. The copy has the name of the GGUF file, or the model's title, with a
 * number if this name exists. Throws PageError if the storage is too small.
 */
export async function keepModel(
  files: readonly File[],
  title: string,
  progress: (done: number, total: number) => void,
): Promise<void> {
  await keptModels(); // removes interrupted copies, whose storage the new copy may need
  const total = files.reduce((sum, { size }) => sum + size, 0);
  const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
  if (total > quota - usage - RESERVE) {
    const free = Math.max(0, quota - usage - RESERVE) / 1e6;
    throw new PageError(
      `A copy takes ${(total / 1e6).toFixed(0)} MB and this browser offers ${free.toFixed(0)} MB of storage. ` +
        "Load the model without keeping a copy.",
    );
  }
  const own = files.find((file) => /\.gguf$/i.test(file.name))?.name ?? title;
  const name = own.replace(/^\.+|[/\\]/g, "_") || "model"; // a valid name of a folder
  const copy = (to: string) => alone(to, () => copied(files, to, (done) => progress(done, total)));
  for (let number = 1; !(await copy(number > 1 ? `${name} (${number})` : name)); number++);
}

/** Copies files to a new folder and returns true. If the folder exists, returns true if it holds the same files. */
async function copied(files: readonly File[], name: string, progress: (done: number) => void): Promise<boolean> {
  const all = await folder();
  const existing = await all.getDirectoryHandle(name).catch(() => null);
  if (existing) return sameFiles(files, await filesOf(existing));
  const directory = await all.getDirectoryHandle(name, { create: true });
  let done = 0;
  for (const file of files) {
    const writable = await (await directory.getFileHandle(file.name, { create: true })).createWritable();
    const counting = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        progress((done += chunk.length));
        controller.enqueue(chunk);
      },
    });
    await file.stream().pipeThrough(counting).pipeTo(writable);
  }
  await (await (await directory.getFileHandle(DONE, { create: true })).createWritable()).close();
  return true;
}

/**
 * True if `kept` is a complete copy whose files have the names, sizes, beginnings and ends of `files`. Files of
 * different weights differ in their beginnings or ends.
 */
async function sameFiles(files: readonly File[], kept: readonly File[]): Promise<boolean> {
  if (kept.length !== files.length + 1 || !kept.some(({ name }) => name === DONE)) return false;
  const same = files.map(async (file) => {
    const copy = kept.find(({ name, size }) => name === file.name && size === file.size);
    if (!copy) return false;
    const ends = [file, copy].map((each) => new Blob([each.slice(0, COMPARED), each.slice(-COMPARED)]).arrayBuffer());
    const [a, b] = (await Promise.all(ends)).map((bytes) => new Uint8Array(bytes));
    return a!.every((byte, i) => byte === b![i]);
  });
  return (await Promise.all(same)).every(Boolean);
}

/** Returns the files of a kept model. */
export async function openKept({ name }: Kept): Promise<File[]> {
  const files = await filesOf(await (await folder()).getDirectoryHandle(name));
  return files.filter((file) => file.name !== DONE);
}

export async function removeKept({ name }: Kept): Promise<void> {
  await (await folder()).removeEntry(name, { recursive: true });
}
