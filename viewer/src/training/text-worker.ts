// Cleans a text up and counts what it is made of, beside the page.

import { clean, inspect } from "./cleaning";
import type { Prepared, TextJob } from "./prepare";

addEventListener("message", ({ data: { documents, steps, validation } }: MessageEvent<TextJob>) => {
  const { text, removed } = clean(documents, steps);
  postMessage({ text, removed, inspection: inspect(text, validation) } satisfies Prepared);
});
