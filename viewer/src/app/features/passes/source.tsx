// Shows GLSL source with syntax highlighting.

import style from "./style.module.css";
const WORDS =
  /(\/\/[^\n]*)|(^\s*#[a-z]+)|\b(void|int|float|uint|bool|vec[234]|[iu]vec[234]|const|uniform|layout|in|out|if|else|for|return|precision|highp|u?sampler2DArray)\b|\b(\d[\w.]*)\b/gm;
const KINDS = ["", "comment", "directive", "word", "number"];

function Marked({ text }: { text: string }) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(WORDS)) {
    if (match.index > end) parts.push(text.slice(end, match.index));
    const kind = KINDS[match.findIndex((group, i) => i > 0 && group)];
    parts.push(<span class={kind && style[kind]}>{match[0]}</span>);
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return (
    <pre class={style.source} tabIndex={0}>
      {parts}
    </pre>
  );
}

/**
 * Splits a shader into the prelude that the recorder generates and the shader's own code after it. The last line of the
 * prelude defines a `STORE_` macro. If a pass combines several shaders, all text before the last shader's own code
 * counts as prelude.
 */
export function split(text: string): [string, string] {
  const lines = text.split("\n");
  const last = lines.findLastIndex((line) => line.startsWith("#define STORE_"));
  return [
    lines.slice(0, last + 1).join("\n"),
    lines
      .slice(last + 1)
      .join("\n")
      .trim(),
  ];
}

/** Shows a shader's own code and, folded below it, the generated prelude. */
export function Source({ name, text }: { name: string; text: string }) {
  const [before, own] = split(text);
  return (
    <>
      <h3>
        Shader <code>{name}</code>
      </h3>
      <Marked text={own} />
      <details>
        <summary>Generated prelude: how texels are fetched, and the layout of the shader's tensors</summary>
        <Marked text={before} />
      </details>
    </>
  );
}
