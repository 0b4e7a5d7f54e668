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

const DONE = ".complete"; // the file written last: a folder without it holds an interrupted copy

/** Returns the kept models; none if the browser has no storage. Removes interrupted copies. */
export async function keptModels(): Promise<Kept[]> {
  if (!canKeep()) return [];
  const found: Kept[] = [];
  try {
    const all = await folder();
    for await (const handle of handles(all)) {
      if (handle.kind !== "directory") continue;
      const files = await filesOf(handle as FileSystemDirectoryHandle);
      if (files.some(({ name }) => name === DONE)) {
        found.push({ name: handle.name, bytes: files.reduce((sum, { size }) => sum + size, 0) });
      } else await all.removeEntry(handle.name, { recursive: true });
    }
  } catch {
    return found; // a private window may forbid storage
  }
  return found.sort((a, b) => a.name.localeCompare(b.name));
}

/** Copies the files of a model to the storage. Throws PageError if the storage is too small. */
export async function keepModel(
  files: readonly File[],
  progress: (done: number, total: number) => void,
): Promise<void> {
  const total = files.reduce((sum, { size }) => sum + size, 0);
  const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
  if (total > quota - usage - RESERVE) {
    const free = Math.max(0, quota - usage - RESERVE) / 1e6;
    throw new PageError(
      `A copy takes ${(total / 1e6).toFixed(0)} MB and this browser offers ${free.toFixed(0)} MB of storage. ` +
        "Load the model without keeping a copy.",
    );
  }
  const name = (files.find((file) => /\.(gguf|safetensors)$/i.test(file.name)) ?? files[0]!).name;
  const directory = await (await folder()).getDirectoryHandle(name, { create: true });
  await directory.removeEntry(DONE).catch(() => {}); // no failure if the file does not exist
  let done = 0;
  for (const file of files) {
    const writable = await (await directory.getFileHandle(file.name, { create: true })).createWritable();
    const counting = new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        done += chunk.length;
        progress(done, total);
        controller.enqueue(chunk);
      },
    });
    await file.stream().pipeThrough(counting).pipeTo(writable);
  }
  await (await (await directory.getFileHandle(DONE, { create: true })).createWritable()).close();
}

/** Returns the files of a kept model. */
export async function openKept({ name }: Kept): Promise<File[]> {
  const files = await filesOf(await (await folder()).getDirectoryHandle(name));
  return files.filter((file) => file.name !== DONE);
}

export async function removeKept({ name }: Kept): Promise<void> {
  await (await folder()).removeEntry(name, { recursive: true });
}
