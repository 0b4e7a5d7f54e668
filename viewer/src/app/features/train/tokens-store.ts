// The vocabularies that the Tokens step compares, and how they tokenize the text.

import { signal } from "@preact/signals";
import type { Bpe, Cut } from "../../../training/bpe";
import { cutOf } from "../../../training/vocabulary";

/** Measures how a vocabulary tokenizes the whole text. */
export class Measurement {
  private readonly latest = signal<{ of: Bpe; cut: Cut } | null>(null);
  private asked: Bpe | null = null;

  /** Returns the result for a vocabulary; null: not measured. A component that calls this follows later changes. */
  of(bpe: Bpe): Cut | null {
    const { value } = this.latest;
    return value?.of === bpe ? value.cut : null;
  }

  /** Measures a vocabulary. If a later call begins before this one ends, the result of this one is discarded. */
  async measure(text: string, bpe: Bpe): Promise<void> {
    this.asked = bpe;
    const cut = await cutOf(text, bpe).catch(() => null); // the same error was shown when the vocabulary was trained
    if (cut && this.asked === bpe) this.latest.value = { of: bpe, cut };
  }
}

class VocabulariesStore {
  /** The vocabulary with all merges, and the text that it was trained on. */
  readonly learnt = signal<{ text: string; bpe: Bpe } | null>(null);
  /** Number of merges of each of the two vocabularies that are compared. */
  readonly counts = { first: signal(0), second: signal(255) };
}

export const vocabularies = new VocabulariesStore();
