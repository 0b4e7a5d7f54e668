// Converts texts to ids in a worker, and ids back to text.

import { LETTERS } from "../runtime/engine/byte-letters";
import { Vocabulary } from "../runtime/engine/tokenizer";
import { PageError } from "../runtime/gl/errors";
import { encodeText, EOS, type Bpe } from "./bpe";
import TokenWorker from "./worker?worker&inline";
import type { Job, Said, Tokenised } from "./worker";

const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

export function tokenise(
  job: Job,
  progress: (share: number) => void = () => {},
  signal?: AbortSignal,
): Promise<Tokenised> {
  const worker = new TokenWorker();
  return new Promise<Tokenised>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<Said>) => {
      if ("progress" in data) progress(data.progress);
      else if ("done" in data) resolve(data.done);
      else reject(new PageError(data.failed));
    };
    worker.onerror = (event) => reject(new PageError(`The text cannot be tokenized: ${event.message}`));
    signal?.addEventListener("abort", () => reject(new PageError("Stopped.")));
    worker.postMessage(job);
  }).finally(() => worker.terminate());
}

/** Returns the bytes of each token. */
export function tokenBytes(bpe: Bpe | null): Uint8Array[] {
  if (!bpe) return Array.from({ length: 256 }, (_, byte) => Uint8Array.of(byte));
  return bpe.vocab.map((token) =>
    token === EOS ? new TextEncoder().encode(EOS) : Uint8Array.from(token, (letter) => BYTES.get(letter) ?? 63),
  );
}

/** The vocabulary of a model trained in the page: one token per byte, or the tokens of `bpe`. */
export class TrainedVocabulary extends Vocabulary {
  private readonly bytes: Uint8Array[];

  constructor(private readonly bpe: Bpe | null) {
    super();
    this.bytes = tokenBytes(bpe);
  }

  encode(text: string): number[] {
    return Array.from(encodeText(text, this.bpe));
  }

  isSpecial(): boolean {
    return false;
  }

  tokenBytes(id: number): Uint8Array {
    return this.bytes[id] ?? new Uint8Array();
  }
}
