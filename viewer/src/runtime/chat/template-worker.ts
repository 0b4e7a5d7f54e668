// Worker: renders chat templates, which are programs that come with a model.

import { Template } from "@huggingface/jinja";
import { isUnicode } from "../gl/unicode";

/** A template, and the variables of each text to render with it. */
export interface RenderJob {
  source: string;
  variables: Record<string, unknown>[];
}

export type Rendered = { texts: string[] } | { failed: string };

const MAX_TEXT = 1 << 20; // characters of all texts; the same as on the desktop

addEventListener("message", ({ data: { source, variables } }: MessageEvent<RenderJob>) => {
  let said: Rendered;
  try {
    const template = new Template(source);
    const texts = variables.map((each) => template.render(each));
    const length = texts.reduce((sum, text) => sum + text.length, 0);
    if (length > MAX_TEXT) said = { failed: `it produces ${length} characters, more than ${MAX_TEXT}` };
    else if (!texts.every(isUnicode)) said = { failed: "it produces text that is not valid Unicode" };
    else said = { texts };
  } catch (error) {
    said = { failed: error instanceof Error ? error.message : String(error) };
  }
  postMessage(said);
});
