"""Checks that no modules of the package import each other in a circle, also not inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Circles that may stay, with the reason. A new circle must be removed, not added here.
ALLOWED = {
    frozenset({"glgpt.text.tokenizer", "glgpt.text.hf_tokenizer"}): (
        "the loader returns one of two classes and is next to their base class; `text` has no place for another module"
    ),
}


def modules(root: Path, package: str) -> dict[str, Path]:
    """Returns the path of each module of a package in `root`, by its dotted name."""
    found = {}
    for path in sorted((root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports below these nodes, including those inside functions, but not those for type checkers."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from statements(node.orelse)
        else:
            yield from statements(ast.iter_child_nodes(node))


def imported(name: str, path: Path, known: set[str]) -> set[str]:
    """Returns the modules of `known` that a module imports.

    `from a import b` imports `a.b` if `a.b` is a module, and otherwise `a`.
    """
    found = set()
    for statement in statements([ast.parse(path.read_text(encoding="utf-8"))]):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
            continue
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        above = package[: len(package) - statement.level + 1] if statement.level else []
        source = ".".join([*above, *([statement.module] if statement.module else [])])
        names = {f"{source}.{alias.name}" for alias in statement.names}
        found |= {one if one in known else source for one in names}
    return (found & known) - {name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that can all reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) > at + 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def graph_of(root: Path, package: str) -> dict[str, set[str]]:
    """Returns the modules that each module of a package imports."""
    paths = modules(root, package)
    return {name: imported(name, path, set(paths)) for name, path in paths.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = {frozenset(circle) for circle in circles(graph_of(ROOT, "glgpt"))}
    assert [" <-> ".join(sorted(circle)) for circle in found - ALLOWED.keys()] == []
    assert [" <-> ".join(sorted(circle)) for circle in ALLOWED.keys() - found] == [], "no circle: remove from ALLOWED"


def test_circles_are_found_wherever_a_module_imports(tmp_path: Path) -> None:
    files = {
        "__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x",
        "a": "def f():\n    from p import b",
        "b": "class C:\n    from .sub.c import x",
        "sub/__init__": "",
        "sub/c": "try:\n    from ..a import x\nexcept ImportError:\n    import p.d",
        "d": "import typing\nif typing.TYPE_CHECKING:\n    import p.a\nelse:\n    import p.e",
        "e": "import p.d as d",
    }
    for name, text in files.items():
        path = tmp_path / "p" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert circles(graph_of(tmp_path, "p")) == [["p.d", "p.e"], ["p.a", "p.b", "p.sub.c"]]
