// The scriptable object without a page around it: what `glgpt export --embed` writes as `glgpt.js`.

import { Glgpt } from "./api";
import type { Progress } from "./engine/loader";
import type { ModelOptions } from "./engine/model";
import { HttpSource } from "./engine/source";

export { Glgpt };
export { PageError } from "./gl/errors";

export interface OpenOptions extends ModelOptions {
  /** The folder of the model's files; by default where this module came from. */
  folder?: string | URL;
  onProgress?: (progress: Progress) => void;
}

/** Fetches the model and gives the object once it can be used; rejects with a message for people. */
export async function open({ folder, onProgress, ...options }: OpenOptions = {}): Promise<Glgpt> {
  const base = folder ? new URL(folder, document.baseURI) : new URL(/* @vite-ignore */ ".", import.meta.url);
  const glgpt = new Glgpt(new HttpSource(base.href.endsWith("/") ? base : new URL(`${base.href}/`)), options);
  if (onProgress) glgpt.onProgress = onProgress;
  await glgpt.ready;
  return glgpt;
}
