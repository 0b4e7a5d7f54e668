"""Runs the scripts in examples/ as a user would."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from glgpt import LanguageModel
from glgpt.bench.engine import RandomCheckpoint
from glgpt.models.families.llama import LlamaConfig

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *args: str, folder: Path) -> str:
    """Runs an example and returns its output. Fails if the example fails, or stderr has a traceback or a warning."""
    found = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *args],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr and "Warning" not in found.stderr
    return found.stdout


def test_the_list_of_examples_is_whole() -> None:
    text = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert all(f"({path.name})" in text for path in EXAMPLES) and text.count(".py](") == len(EXAMPLES)
    for path in EXAMPLES:
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert f"python examples/{path.name}" in about, path.name


@pytest.mark.slow
def test_generate(tmp_path: Path) -> None:
    out = run("generate.py", "ROMEO:\nIs it", "--tokens", "8", "--seed", "3", folder=tmp_path)
    assert out.startswith("ROMEO:\nIs it") and out.endswith("seed 3\n")
    assert "5 tokens read, 7 decoded" in out


@pytest.mark.slow
def test_logit_lens(tmp_path: Path) -> None:
    lines = run("logit_lens.py", "ROMEO:\nIs it", "--top", "2", folder=tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["embed", *(f"h.{i}.resid_post" for i in range(6))]
    assert lines[-1].split()[1] == "·not"  # the next greedy token


@pytest.mark.slow
def test_logit_lens_of_a_llama(tmp_path: Path) -> None:
    """Fails if the example uses GPT-2's names of the weights or GPT-2's last norm for a Llama."""
    config = LlamaConfig(1024, 64, 32, 2, 4, 2, 40)
    folder = RandomCheckpoint(config).save(tmp_path / "llama")
    for file in ("vocab.json", "merges.txt"):
        shutil.copy(ROOT / "weights/shakespeare" / file, folder)
    out = run("logit_lens.py", "ROMEO:", "--top", "1", "--model", str(folder), folder=tmp_path).splitlines()
    assert [line.split()[0] for line in out] == ["embed", "h.0.resid_post", "h.1.resid_post"]
    with LanguageModel.from_pretrained(folder, device="software") as model:
        assert model.tokenizer
        best = int(model.logits(model.encode("ROMEO:"))[-1].argmax())
        assert out[-1].split()[1] == model.tokenizer.label(best)


@pytest.mark.slow
def test_attention_figure(tmp_path: Path) -> None:
    assert run("attention_figure.py", "To be, or not", "--out", "a.png", folder=tmp_path) == "a.png\n"
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak
@pytest.mark.slow
def test_train_and_plot(tmp_path: Path) -> None:
    out = run("train_and_plot.py", "--steps", "20", folder=tmp_path)
    losses = [float(line.split()[4]) for line in out.splitlines() if line.startswith("step")]
    assert len(losses) > 5 and losses[-1] < losses[0] - 1
    assert (tmp_path / "runs/example/losses.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_own_page(tmp_path: Path) -> None:
    if not (ROOT / "viewer/dist/embed/glgpt.js").exists():
        pytest.skip("the page is not built: make viewer")
    model = str(ROOT / "tests/goldens/vocab3-untied")
    assert run("own_page.py", "--model", model, "--out", "page", folder=tmp_path).endswith("glgpt serve page\n")
    page = (tmp_path / "page/index.html").read_text(encoding="utf-8")
    assert 'from "./glgpt.js"' in page and (tmp_path / "page/glgpt.js").exists()
