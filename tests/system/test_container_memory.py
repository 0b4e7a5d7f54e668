"""Tests that the available memory respects the limit of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from glgpt.system import memory
from glgpt.system.memory import available_memory


@pytest.mark.parametrize(("limit", "free"), [("3000", 1500), ("1200", 0), ("max", None)])
def test_a_container_may_have_less_memory_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, free: int | None
) -> None:
    files = [tmp_path / name for name in ("max", "current", "stat")]
    for file, text in zip(
        files, (limit, "2000", "anon 900\ninactive_file 300\nactive_file 200\nfile 700\n"), strict=True
    ):
        file.write_text(text)
    monkeypatch.setattr(memory, "_CGROUPS", ())
    whole = available_memory()
    assert whole and whole > 1 << 20
    monkeypatch.setattr(memory, "_CGROUPS", (files, [tmp_path / "missing"] * 3))
    found = available_memory()
    assert found is not None and (found == free if free is not None else found > 1 << 20)
