// Worker: cleans up a text and inspects it.

import { clean, inspect } from "./cleaning";
import type { Prepared, TextJob } from "./prepare";

addEventListener("message", ({ data: { documents, steps, validation } }: MessageEvent<TextJob>) => {
  const { text, removed } = clean(documents, steps);
  postMessage({ text, removed, inspection: inspect(text, validation) } satisfies Prepared);
});
