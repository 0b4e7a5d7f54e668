// Cleans up and inspects a text in a worker, so that the page stays responsive.

import { PageError } from "../runtime/gl/errors";
import type { CleaningStep, Inspection, Removed } from "./cleaning";
import TextWorker from "./text-worker?worker&inline";

export interface TextJob {
  documents: string[];
  steps: readonly CleaningStep[];
  validation: number;
}

export interface Prepared {
  text: string;
  removed: Removed[];
  inspection: Inspection;
}

export function prepared(documents: string[], steps: readonly CleaningStep[], validation: number): Promise<Prepared> {
  const worker = new TextWorker();
  return new Promise<Prepared>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<Prepared>) => resolve(data);
    worker.onerror = (event) => reject(new PageError(`The text cannot be cleaned up: ${event.message}`));
    worker.postMessage({ documents, steps, validation } satisfies TextJob);
  }).finally(() => worker.terminate());
}
