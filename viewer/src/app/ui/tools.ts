// Helpers of the views: access to the device, and number formats.

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Model } from "../../runtime/engine/model";
import { engine } from "../stores/model";

/**
 * Runs `work` on the device after each change of `inputs`. If a run must wait for the device and `inputs` change again,
 * the waiting run is skipped. Returns a signal that is true until the latest run ends. `failed` receives an empty
 * string before each run, and the error message of a run that fails.
 */
export function useDevice(
  work: (model: Model) => Promise<void>,
  inputs: readonly unknown[],
  failed: (why: string) => void = () => {},
): ReadonlySignal<boolean> {
  const latest = useRef(0);
  const busy = useSignal(true);
  useEffect(() => {
    const mine = ++latest.current;
    const run = async () => {
      busy.value = true;
      failed("");
      await engine().borrow(async (model) => {
        if (mine === latest.current) await work(model);
      });
      if (mine === latest.current) busy.value = false;
    };
    run().catch((error: unknown) => {
      console.warn("drawing:", error);
      if (mine !== latest.current) return;
      busy.value = false;
      failed(error instanceof Error ? error.message : String(error));
    });
    return () => {
      latest.current++;
    };
  }, inputs);
  return busy;
}

/** Makes the KV cache keep the queries of all layers during generation, until the component is unmounted. */
export function useQueries({ cache }: Model): void {
  useEffect(() => {
    cache.shown++;
    return () => {
      cache.shown--;
    };
  }, [cache]);
}

export function short(value: number): string {
  if (value === 0 || !Number.isFinite(value)) return String(value);
  return Math.abs(value) >= 1e4 || Math.abs(value) < 1e-3 ? value.toExponential(2) : value.toPrecision(4);
}

const COUNTS = new Intl.NumberFormat("en");

/** Formats an integer with separators between thousands. */
export const thousands = (count: number) => COUNTS.format(count);

/** Formats a number of parameters with three digits, such as 135 million. */
export function countInWords(count: number): string {
  const [size, name] = count >= 0.9995e9 ? [1e9, " billion"] : count >= 0.9995e6 ? [1e6, " million"] : [1, ""];
  return `${thousands(Number((count / size).toPrecision(3)))}${name}`;
}

export function percent(p: number): string {
  return `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)}%`;
}

/** Returns the pointer's position within an element, as fractions from 0 to 1. */
export function fraction(event: MouseEvent): [number, number] {
  const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
  const part = (at: number, size: number) => Math.min(0.999999, Math.max(0, at / size));
  return [part(event.clientX - box.left, box.width), part(event.clientY - box.top, box.height)];
}

/** Offers data as a file to save. */
export function offerFile(data: BlobPart, type: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** Calls `opened` with files that are dropped on the page. Returns a signal that is true while files are over it. */
export function useDrop(opened: (files: File[]) => void): ReadonlySignal<boolean> {
  const over = useSignal(false);
  useEffect(() => {
    const dragged = (event: DragEvent) => {
      if (!event.dataTransfer?.types.includes("Files")) return; // dragged text: an input field may accept it
      event.preventDefault();
      over.value = event.type === "dragover";
      if (event.type === "drop") opened(Array.from(event.dataTransfer.files));
    };
    const events = ["dragover", "dragleave", "drop"] as const;
    for (const name of events) addEventListener(name, dragged);
    return () => {
      for (const name of events) removeEventListener(name, dragged);
    };
  }, []);
  return over;
}

/** True if the window is wide enough for the two columns of the style sheets. */
export const isWide = () => matchMedia("(min-width: 860px)").matches;

const COPIED_MS = 2000; // ms for which a button shows that the text was copied

/**
 * Returns a function `copy` that copies `text`, and `copied`: true for `COPIED_MS` ms after copying. Over plain http,
 * `copy` is null.
 */
export function useCopy(text: string): { copied: boolean; copy: (() => void) | null } {
  const copied = useSignal(false);
  const copy = () =>
    void navigator.clipboard.writeText(text).then(
      () => {
        copied.value = true;
        setTimeout(() => (copied.value = false), COPIED_MS);
      },
      () => {}, // the browser forbids copying
    );
  return { copied: copied.value, copy: "clipboard" in navigator ? copy : null };
}
