"""Tests that the files that CONTRIBUTING.md names exist, and that existing code follows its lists of steps."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from cases import CASES, TRAINING, VJPS

from glgpt import models, ops
from glgpt.program.formats import FORMATS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CASES_TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/cases").glob("*.py")))
OPS_TEXT = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "glgpt/ops").glob("*.py")))
SHADERS = {path.stem for path in (ROOT / "glsl").glob("*/*.frag") if path.parent.name != "bench"}


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_file_it_names_exists() -> None:
    named = re.findall(r"`([\w.<>-]+/[\w./<>-]*|[\w<>-]+\.(?:py|md|css|ts))`", TEXT)
    assert len(named) > 40
    for path in named:
        assert list(ROOT.glob(re.sub(r"<\w+>", "*", path).rstrip("/"))), f"{path} does not exist"
    for target in re.findall(r"`make ([a-z-]+)", TEXT):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), target


def test_the_find_it_table_names_packages_of_the_architecture() -> None:
    for package in re.findall(r"`(glgpt/\w+)/", section("Packages")):
        table = (ROOT / "docs/design/architecture.md").read_text(encoding="utf-8")
        assert f"`{package.removeprefix('glgpt/')}/`" in table


def recorded() -> list[str]:
    """Returns the ops: public functions that take a recorder and emit a pass."""
    found = []
    for name in ops.__all__:
        op = getattr(ops, name)
        takes = inspect.isfunction(op) and next(iter(inspect.signature(op).parameters), "") == "rec"
        if takes and ("rec.emit(" in inspect.getsource(op) or "_vjp(" in inspect.getsource(op)):
            found.append(name)
    return found


def test_an_op_has_a_shader_and_rows_of_cases() -> None:
    """Fails if an op emits a shader that does not exist, or has no case in `tests/cases`."""
    emitted = set(re.findall(r'rec\.emit\(\s*"(\w+)"', OPS_TEXT))
    assert emitted <= SHADERS
    names = recorded()
    assert len(names) > 15
    for name in names:
        assert f"ops.{name}(" in CASES_TEXT, f"{name} has no row of cases"
    assert CASES and TRAINING and VJPS


def test_an_op_that_is_differentiable_has_a_case_of_its_vjp() -> None:
    vjps = "".join(inspect.getsource(case.record) for case in VJPS.values())
    taped = [name for name in recorded() if ".differentiable(" in inspect.getsource(getattr(ops, name))]
    assert len(taped) > 10
    assert [name for name in taped if f"ops.{name}(" not in vjps] == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_its_include(name: str) -> None:
    include = (ROOT / f"glsl/formats/{name}.glsl").read_text(encoding="utf-8")
    assert f"{name}_decode" in include
    assert f'"{name}"' in (ROOT / "tests/helpers/op_bench.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", models.families())
def test_a_family_has_a_golden_or_is_compared_live(family: str) -> None:
    configs = (ROOT / "tests/goldens").glob("*/config.json")
    golden = any(f'"model_type": "{family}"' in path.read_text(encoding="utf-8") for path in configs)
    live = (ROOT / "tests/live/test_families_live.py").read_text(encoding="utf-8")
    assert golden or f'"{family}"' in live


def test_a_view_is_where_the_list_says() -> None:
    features = ROOT / "viewer/src/app/features"
    index = (features / "index.ts").read_text(encoding="utf-8")
    views = re.search(r"export const VIEWS[^=]*= \[(.*?)\]", index, re.DOTALL)[1].split(", ")  # type: ignore[index]
    tabs = (ROOT / "docs/guide/page.md").read_text(encoding="utf-8").lower()
    assert sorted(views) == sorted(path.parent.name for path in features.glob("*/view.tsx"))
    for view in views:
        assert f'import {{ view as {view} }} from "./{view}/view";' in index, view
        text = (features / view / "view.tsx").read_text(encoding="utf-8")
        found = re.search(rf'export const view: \w+<"{view}"> = {{(.*?)\n}};', text, re.DOTALL)
        assert found, view
        assert {"name", "title", "params", "component"} <= set(re.findall(r"^  (\w+)[:,]", found[1], re.MULTILINE)), (
            view
        )
        assert f"| {view} |" in tabs, view


def test_a_view_takes_two_files() -> None:
    steps = section("Adding a view of the page")
    assert len(re.findall(r"^\d\. `viewer/src/app/features/", steps, re.MULTILINE)) == 2
    features = ROOT / "viewer/src/app/features"
    declared = re.compile(r"interface ViewNames \{\s+(\w+): true;")
    for path in (ROOT / "viewer/src").rglob("*.ts*"):
        text = path.read_text(encoding="utf-8")
        imported = re.findall(r'from "[^"]*/(\w+)/view"', text)
        assert not imported or path == features / "index.ts", path
        names = declared.findall(text)
        assert not names or path == features / names[0] / "view.tsx", path
