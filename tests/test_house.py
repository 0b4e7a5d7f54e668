"""The house's own rules: which way imports run, how large a package may grow, what no file may name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_imports_run_downward_only() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_locks_hold_pins_only() -> None:
    for name in ("requirements.lock", "requirements-dev.lock"):
        for line in (ROOT / name).read_text().splitlines():
            assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_]+ .+)?", line), f"{name}: {line}"


def test_every_package_the_tests_use_for_running_is_pinned_alike() -> None:
    run, dev = (set((ROOT / name).read_text().splitlines()) for name in ("requirements.lock", "requirements-dev.lock"))
    assert run <= dev


def test_a_package_has_at_most_twelve_modules_and_says_what_it_knows() -> None:
    packages = [p.parent for p in (ROOT / "glgpt").rglob("__init__.py")]
    assert len(packages) > 10
    for package in packages:
        modules = [p for p in package.glob("*.py") if p.name != "__init__.py"]
        assert len(modules) <= 12, f"{package.name} has {len(modules)} modules"
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))), package.name
