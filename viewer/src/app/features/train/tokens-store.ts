// The vocabularies that the Tokens step compares.

import { signal } from "@preact/signals";
import type { Bpe } from "../../../training/bpe";

class VocabulariesStore {
  /** The vocabulary with all merges, and the text that it was trained on. */
  readonly learnt = signal<{ text: string; bpe: Bpe } | null>(null);
  /** Number of merges of each vocabulary. */
  readonly counts = { first: signal(0), second: signal(255) };
}

export const vocabularies = new VocabulariesStore();
