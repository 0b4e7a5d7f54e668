"""Runs TypeScript of the page in Node, bundled as Vite bundles it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

VIEWER = Path(__file__).parents[2] / "viewer"
_MAIN = "import {{ readFileSync }} from 'node:fs';\n{body}\nconst given = JSON.parse(readFileSync(0, 'utf8'));\n"
_PRINT = "process.stdout.write(JSON.stringify(await main(given)));\n"


def run_typescript(folder: Path, body: str, given: Any) -> Any:
    """Returns the result of the function `main` that `body` defines for `given`, or what its promise resolves to; JSON.

    `body` imports modules of the page as `page/<path>`. `folder` holds the bundle.
    """
    node, bundler = shutil.which("node"), VIEWER / "node_modules/.bin/rolldown"
    if not node or not bundler.exists():
        pytest.skip("the page's packages are not installed: make viewer")
    entry, bundle = folder / "main.ts", folder / "main.mjs"
    body = body.replace("page/", f"{VIEWER / 'src'}/")
    entry.write_text(_MAIN.format(body=body) + _PRINT, encoding="utf-8")
    subprocess.run(
        [bundler, entry, "-f", "esm", "-p", "node", "-o", bundle], cwd=VIEWER, check=True, stdout=subprocess.DEVNULL
    )
    done = subprocess.run([node, bundle], input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
