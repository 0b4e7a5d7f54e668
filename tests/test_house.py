"""The house's own rules: which way imports run, how long a file may be, what no file may name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON, SHADER = 300, 100  # lines a file stays below


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_imports_run_downward_only() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_files_are_short() -> None:
    python = {p: lines(p) for folder in ("glgpt", "tests", "docs") for p in (ROOT / folder).rglob("*.py")}
    shaders = {p: lines(p) for p in (ROOT / "glsl").rglob("*") if p.is_file()}
    assert len(python) > 20 and len(shaders) > 5
    long = [p.name for p, n in python.items() if n >= PYTHON] + [p.name for p, n in shaders.items() if n >= SHADER]
    assert not long


def test_locks_hold_pins_only() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        for line in (ROOT / name).read_text().splitlines():
            assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_]+ .+)?", line), f"{name}: {line}"


def test_every_package_the_tests_use_for_running_is_pinned_alike() -> None:
    run, dev = (set((ROOT / name).read_text().splitlines()) for name in ("requirements.lock", "requirements-dev.lock"))
    assert run <= dev
