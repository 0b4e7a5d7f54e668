"""Tests that generation_config.json and other files decide which ids end a text and how answers are sampled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glgpt.checkpoint.generation_config import CHAT_SAMPLING, chat_sampling, end_of_text
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel

WIDE = Path(__file__).parents[1] / "goldens/wide"
LLAMA3 = [128001, 128008, 128009]


@pytest.mark.parametrize(
    ("generation", "config", "own", "ends"),
    [
        (LLAMA3, 128001, 5, tuple(LLAMA3)),
        (None, LLAMA3, 5, tuple(LLAMA3)),
        (7, LLAMA3, 5, (7,)),
        ([7, 7], None, 5, (7,)),
        (None, [], 5, (5,)),
        (None, None, 5, (5,)),
        (None, None, None, ()),
        (None, None, 128256, ()),  # the tokenizer's own id is beyond the model's vocabulary
    ],
)
def test_the_first_file_that_has_them_decides(
    tmp_path: Path, generation: Any, config: Any, own: int | None, ends: tuple[int, ...]
) -> None:
    tokenizer: Any = SimpleNamespace(eos=own)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    assert end_of_text(tmp_path, 128256, tokenizer) == ends


def test_a_file_without_the_field_decides_nothing(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"pad_token_id": 1, "eos_token_id": null}')
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": LLAMA3}))
    assert end_of_text(tmp_path, 128256, None) == tuple(LLAMA3)


def test_the_default_of_gpt2s_config_is_no_choice(tmp_path: Path) -> None:
    """Fails if 50256, which transformers writes for every vocabulary size, ends texts of a GPT-2 with 100 tokens."""
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 50256}))
    assert (end_of_text(tmp_path, 100, None), end_of_text(tmp_path, 50257, None)) == ((), (50256,))


@pytest.mark.parametrize("value", [-1, 130, 10**30, 1.5, True, "2", "</s>", {"a": 1}, [1, None], [[1]], [0] * 65])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_what_is_no_id_is_refused_by_file(tmp_path: Path, value: Any, name: str) -> None:
    for file in WIDE.iterdir():
        if file.suffix != ".npz":
            shutil.copy(file, tmp_path)
    path = tmp_path / name
    fields = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(fields | {"eos_token_id": value}))
    with pytest.raises(GlgptError, match=rf"{name}: eos_token_id ") as caught:
        LanguageModel.from_pretrained(tmp_path, device="software")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500
    assert main(["generate", "--model", str(tmp_path), "--ids", "1", "--tokens", "1"]) == 2


def test_generation_ends_at_any_of_them(tmp_path: Path) -> None:
    for file in WIDE.iterdir():
        if file.suffix != ".npz":
            shutil.copy(file, tmp_path)
    with LanguageModel.from_pretrained(WIDE, device="software") as model:
        made = list(model.generate_ids([7, 8], 12, temperature=0, eos=False))
    ends = [*dict.fromkeys(made)][:0:-1]  # the distinct generated tokens except the first, in reverse
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    first = made.index(ends[-1])
    with LanguageModel.from_pretrained(tmp_path, device="software") as model:
        assert model.eos_ids == tuple(ends)
        stream = model.generate_ids([7, 8], 12, temperature=0)
        assert list(stream) == made[:first] and stream.stats.stopped == "eos"
        for text in model.generate_batch([[7, 8], [7, 8]], 12, temperature=0):
            assert text.read() and text.ids == made[:first] and text.stats.stopped == "eos"
        assert list(model.generate_ids([7, 8], 12, temperature=0, eos=False)) == made


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        (None, CHAT_SAMPLING),
        ({"eos_token_id": 5, "top_p": 0.5}, CHAT_SAMPLING),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 0, "do_sample": True}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0, "top_k": 40, "min_p": 0.1}, {"temperature": 0, "top_k": 40, "min_p": 0.1}),
        ({"temperature": 1, "top_k": -1, "min_p": 0}, {"temperature": 1}),
        ({"temperature": 1, "top_k": 50.0}, {"temperature": 1, "top_k": 50}),
    ],
)
def test_answers_are_sampled_as_the_file_says(tmp_path: Path, config: Any, sampling: dict[str, Any]) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert chat_sampling(tmp_path) == sampling


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [("temperature", -1, "a number from 0 to 100"), ("temperature", "hot", "a number"), ("top_k", 1.5, "an integer")],
)
def test_sampling_out_of_range_is_refused_by_file(tmp_path: Path, key: str, value: Any, wanted: str) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 1, key: value}))
    with pytest.raises(GlgptError, match=f"generation_config.json: {key} is .*; it must be {wanted}"):
        chat_sampling(tmp_path)
