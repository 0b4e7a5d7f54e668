"""Runs TypeScript of the page in Node, after bundling it with Rolldown, as Vite does."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

VIEWER = Path(__file__).parents[2] / "viewer"
BUNDLER = VIEWER / "node_modules/.bin/rolldown"
_MAIN = "import {{ readFileSync }} from 'node:fs';\n{body}\nconst given = JSON.parse(readFileSync(0, 'utf8'));\n"
_PRINT = "process.stdout.write(JSON.stringify(await main(given)));\n"


def run_typescript(folder: Path, body: str, given: Any) -> Any:
    """Runs TypeScript source that defines a function `main`; returns what `main(given)` returns or resolves to.

    `body` is the source. It imports modules of the page as `page/<path>`. `given` and the result are JSON values. The
    bundle is written to `folder`.
    """
    node = shutil.which("node")
    if not node or not BUNDLER.exists():
        pytest.skip("the page's packages are not installed: make viewer")
    bundle = folder / "main.mjs"
    bundle.write_text(_bundled(body), encoding="utf-8")
    done = subprocess.run([node, bundle], input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@cache
def _bundled(body: str) -> str:
    """Returns a bundled program that calls the function `main` of `body`. Tests with the same `body` share it."""
    with TemporaryDirectory(prefix="glgpt-bundle-") as folder:
        entry, bundle = Path(folder, "main.ts"), Path(folder, "main.mjs")
        entry.write_text(_MAIN.format(body=body.replace("page/", f"{VIEWER / 'src'}/")) + _PRINT, encoding="utf-8")
        command = [BUNDLER, entry, "-f", "esm", "-p", "node", "-o", bundle]
        subprocess.run(command, cwd=VIEWER, check=True, stdout=subprocess.DEVNULL)
        return bundle.read_text(encoding="utf-8")
