"""Checks the rules of this repository: directions of imports, sizes of packages, and names that files must not use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.mutants import mutants

from glgpt.models.families import FAMILIES, config_class

ROOT = Path(__file__).parent.parent


def test_imports_run_downward_only() -> None:
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_the_readme_type_checks(tmp_path: Path) -> None:
    """Checks that readers who use `mypy --strict` can paste the examples of the README."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    files = [tmp_path / f"readme_{i}.py" for i in range(len(blocks))]
    for file, text in zip(files, blocks, strict=True):
        file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_locks_hold_pins_only() -> None:
    for name in ("requirements.lock", "requirements-dev.lock", "requirements-docs.lock"):
        for line in (ROOT / name).read_text().splitlines():
            assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_]+ .+)?", line), f"{name}: {line}"


def test_every_package_the_tests_use_for_running_is_pinned_alike() -> None:
    run, dev = (set((ROOT / name).read_text().splitlines()) for name in ("requirements.lock", "requirements-dev.lock"))
    assert run <= dev


def test_every_package_has_its_tests_in_a_folder_of_its_name() -> None:
    packages = [path.parent.name for path in (ROOT / "glgpt").glob("*/__init__.py")]
    assert len(packages) > 10
    for name in packages:
        assert list((ROOT / "tests" / name).glob("test_*.py")), f"no tests/{name}"


# Packages that may have more than twelve modules: the modules are alike, and few readers need more than one.
LARGE_PACKAGES = {"glgpt/cli/commands"}  # one module per command


def test_a_package_has_at_most_twelve_modules_and_a_docstring() -> None:
    packages = [p.parent for p in (ROOT / "glgpt").rglob("__init__.py")]
    assert len(packages) > 10
    for package in packages:
        modules = [p for p in package.glob("*.py") if p.name != "__init__.py"]
        allowed = package.relative_to(ROOT).as_posix() in LARGE_PACKAGES
        assert len(modules) <= 12 or allowed, f"{package.name} has {len(modules)} modules"
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))), package.name


# Only the modules of model families, and the files in SHARED, may use the names that FAMILY matches. The files in
# SHARED hold the names that all families share.
SHARED = {"models/activations.py", "models/names.py", "models/spec.py"}
FAMILY = re.compile(
    r"c_attn|c_proj|c_fc|\bwte\b|\bwpe\b|\blm_head|\btransformer\.|[qkv]_proj|embed_tokens|\bh\.\d|\bh\.\{|"
    r"attn\.(q|k|v|z|out|scores|pattern)|mlp\.(pre|act|out|gate|up)|resid_(mid|post)|\bln_(1|2|f)\b"
)
FOR_PEOPLE = {"cli/commands/dump.py", "inspection/dump.py"}  # help texts, and a message that gives an example
TRANSLATED = {"gguf/architectures.py"}  # a table of names in files of another format


def test_no_code_outside_a_family_knows_it() -> None:
    """Fails if code outside the model families uses a name that `FAMILY` matches.

    For each new family, such code would have to be changed. `SHARED`, `TRANSLATED` and `FOR_PEOPLE` list exceptions.
    """
    found = [hit for path in sorted((ROOT / "glgpt").rglob("*.py")) for hit in family_names(path)]
    assert not found, "\n".join(found)


def test_every_module_of_a_family_is_in_the_table() -> None:
    """Fails for a family that is not registered, or whose module is long or imports ops, programs or the player."""
    modules = {path.stem for path in (ROOT / "glgpt/models/families").glob("*.py")} - {"__init__"}
    assert modules == {row.split(".")[0] for row in FAMILIES.values()}
    assert all(config_class(name).model_type == name for name in FAMILIES)
    for name in modules:
        text = (ROOT / f"glgpt/models/families/{name}.py").read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 120 and not re.search(r"glgpt import ops|glgpt\.(ops|gl|program)\b", text), (
            name
        )


def family_names(path: Path) -> list[str]:
    """Returns the line and text of each used name and each string, except docstrings, that `FAMILY` matches."""
    name = path.relative_to(ROOT / "glgpt").as_posix()
    if name.startswith("models/families/") or name in SHARED | TRANSLATED | FOR_PEOPLE:
        return []
    source = path.read_text(encoding="utf-8")
    if not FAMILY.search(source):  # most files, whose trees need not be walked
        return []
    tree, found = ast.parse(source), []
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, kinds) and ast.get_docstring(n) is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            text = node.value
        elif isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.keyword):
            text = getattr(node, "id", None) or getattr(node, "attr", None) or node.arg or ""
        else:
            continue
        if FAMILY.search(text):
            found.append(f"{name}:{node.lineno}: {text.strip()[:60]}")
    return found


def test_no_script_of_the_page_knows_a_family() -> None:
    """Checks that no script names a weight or an activation: the manifest gives their names to the page."""
    found = []
    for path in sorted((ROOT / "viewer/src").rglob("*.ts*")):
        code = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        found += [f"{path.name}: {m.group()}" for m in FAMILY.finditer(code)]
    assert not found, "\n".join(found)


def test_every_fault_of_make_mutants_can_be_made() -> None:
    """Fails if the text that a mutant replaces is not in its file exactly once.

    A mutant is a fault that `make mutants` inserts, to check that a test detects it.
    """
    assert len(mutants()) >= 40
    assert [f"{mutant.name}: {mutant.stale}" for mutant in mutants() if mutant.stale] == []
