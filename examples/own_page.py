"""Puts a model into your own web page, which has a text box: while you type, the model continues the text in the box.

    python examples/own_page.py --out my-page
    glgpt serve my-page

`glgpt export --embed` writes the module `glgpt.js` and the model's files. This script adds a page that imports the
module. The export needs the built viewer (the page's code): every wheel includes it, and in a clone `make viewer`
builds it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Continue my line</title>
<style>
  body { font: 1.1rem/1.5 system-ui; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; color-scheme: light dark }
  textarea { font: inherit; width: 100%; box-sizing: border-box }
</style>
<h1>Continue my line</h1>
<textarea id="line" rows="2">ROMEO:
But soft, what light</textarea>
<p id="more" style="white-space: pre-wrap"></p>
<p id="state" role="status">loading…</p>
<script type="module">
  import { open } from "./glgpt.js";

  const [line, more, state] = ["line", "more", "state"].map((id) => document.getElementById(id));
  try {
    const show = ({ done, total }) => (state.textContent = `${Math.round((100 * done) / total)}%`);
    const glgpt = await open({ onProgress: show });
    let running = new AbortController();
    const write = async () => {
      running.abort(); // stop the continuation of the previous text
      const { signal } = (running = new AbortController());
      more.textContent = "";
      await glgpt.generate({
        prompt: line.value || "\\n",
        tokens: 40,
        seed: 1,
        signal,
        onToken: (token) => signal.aborted || more.append(token.text),
      });
    };
    line.addEventListener("input", write);
    state.textContent = "";
    await write();
  } catch (error) {
    state.textContent = error.message;
  }
</script>
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="shakespeare", help="the embedded model, a Hub name such as gpt2, or a folder"
    )
    parser.add_argument("--out", type=Path, default=Path("my-page"))
    args = parser.parse_args()

    command = [
        sys.executable,
        "-m",
        "glgpt",
        "export",
        "--model",
        args.model,
        "--embed",
        "--dtype",
        "f16",
        "--out",
        str(args.out),
    ]
    subprocess.run(command, check=True)
    (args.out / "index.html").write_text(PAGE, encoding="utf-8")
    print(f"now: glgpt serve {args.out}")


if __name__ == "__main__":
    main()
