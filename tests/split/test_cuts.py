"""Tests that every split point of every golden gives the unsplit model's bits, locally and over a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.chat_models import chat_llama
from helpers.soak import mostly_soak

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.chunks import upload_token
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.stages.stage import Stage
from glgpt.models.part import Part, checked_chain
from glgpt.wire.messages import Ask

GOLDENS = sorted(path.parent.name for path in (Path(__file__).parents[1] / "goldens").glob("*/reference.npz"))
SOME = ("vocab3-untied", "llama-grouped")
LAST = 5  # tokens that a test generates


@pytest.fixture
def stages() -> Iterator[Callable[..., list[Stage]]]:
    made: list[Stage] = []

    def load(checkpoint: Checkpoint, *parts: Part, **options: Any) -> list[Stage]:
        made.extend(Stage.load(checkpoint, part, device="software", **options) for part in parts)
        return made[-len(parts) :]

    yield load
    for stage in made:
        stage.close()


def prompt_of(folder: Path, n_positions: int) -> list[int]:
    with np.load(folder / "reference.npz") as file:
        ids = [int(i) for i in file["tokens"]]
    return ids[: max(1, n_positions - LAST)]


def unsplit(folder: Path, dtype: str = "f32") -> tuple[list[int], list[Any]]:
    """Returns the prompt, and the `LAST` rows of logits from which the greedy tokens after it are chosen."""
    rows = []
    with LanguageModel.from_pretrained(folder, dtype, device="software") as model:
        ids = prompt_of(folder, model.config.n_positions)
        text, view = list(ids), model.player.entry("decode").outputs["logits"]
        model._decoder._prefill(ids)
        for _ in range(LAST):
            rows.append(view.unpack(model.player.read(view.texture))[0])
            if len(text) == model.config.n_positions:
                break
            text.append(int(rows[-1].argmax()))
            upload_token(model.player, text[-1])
            model.player.play("decode", pos=len(text) - 1)
    return ids, rows


def split_rows(parts: list[Stage], ids: list[int]) -> list[Any]:
    """Returns the rows of logits that `unsplit` returns, but computed by a chain of stages."""
    rows, held, text = [], 0, list(ids)
    for _ in range(LAST):
        x: Any = text[held:]
        for stage in parts[:-1]:
            x = stage.answer(held, x, None).hidden
        answer = parts[-1].answer(held, x, Ask(logits=True))
        assert answer.logits is not None
        rows.append(answer.logits)
        held = len(text)
        text += answer.tokens
        if held == parts[0].config.n_positions:
            break
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_soak(GOLDENS, SOME))
def test_every_cut_of_a_golden_gives_the_same_bits(
    name: str, goldens: Path, stages: Callable[..., list[Stage]]
) -> None:
    ids, wanted = unsplit(goldens / name)
    with Checkpoint.open(goldens / name) as checkpoint:
        n_layer = checkpoint.config.n_layer
        for cut in range(n_layer + 1):
            parts = stages(checkpoint, Part(0, cut, True, False), Part(cut, n_layer, False, True))
            for ours, whole in zip(split_rows(parts, ids), wanted, strict=True):
                assert np.array_equal(ours, whole), f"cut before block {cut}"


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_soak(GOLDENS, SOME))
def test_windows_and_batches_of_a_golden_give_the_same_bits(name: str, goldens: Path, serve: Any) -> None:
    """Compares the logits of a split model with those of the unsplit model, on batches of texts as in `eval --window`.

    The first block of the split model is on a server. The split model's logits must equal the logits that the unsplit
    model computes for each text alone. The unsplit model's `logits_batch` adds up products in another order, so its
    logits are only close to those of the split model.
    """
    folder = goldens / name
    with LanguageModel.from_pretrained(folder, device="software") as model:
        most = model.config.n_positions
        ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 3 * most).tolist()
        texts = [ids[at : at + size] for size in (most, max(1, most // 3)) for at in range(0, 2 * most, size)]
        alone, batch = [model.logits(text) for text in texts], model.logits_batch(texts)
        scored = [text for text in texts if len(text) > 1]
        losses = list(model.losses(scored))
    server = serve(folder, "+0")
    with load(folder, rest=server.url, device="software") as split:
        for ours, whole, beside in zip(split.logits_batch(texts), alone, batch, strict=True):
            assert np.array_equal(ours, whole)
            np.testing.assert_allclose(ours, beside, atol=1e-5 * np.abs(whole).max())
        for ours, whole in zip(split.losses(scored), losses, strict=True):
            np.testing.assert_allclose(ours, whole, atol=2e-5)


def test_three_stages_with_both_ends_here(goldens: Path, stages: Callable[..., list[Stage]]) -> None:
    ids, wanted = unsplit(goldens / "llama-grouped")
    with Checkpoint.open(goldens / "llama-grouped") as checkpoint:
        n = checkpoint.config.n_layer
        parts = stages(checkpoint, Part(0, 0, True, False), Part(0, n, False, False), Part(n, n, False, True))
        assert all(np.array_equal(a, b) for a, b in zip(split_rows(parts, ids), wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(["f16", "q8", "q4"], ("q4",)))
@pytest.mark.parametrize("name", SOME)
def test_narrow_weights_are_cut_alike(goldens: Path, stages: Callable[..., list[Stage]], name: str, dtype: str) -> None:
    ids, wanted = unsplit(goldens / name, dtype)
    with Checkpoint.open(goldens / name) as checkpoint:
        n = checkpoint.config.n_layer
        parts = stages(checkpoint, Part(0, 1, True, False), Part(1, n, False, True), dtype=dtype)
        assert all(np.array_equal(a, b) for a, b in zip(split_rows(parts, ids), wanted, strict=True))


def test_a_stage_loads_its_own_tensors_only(goldens: Path, stages: Callable[..., list[Stage]]) -> None:
    for name in ("dhead3-relu", "llama-grouped", "vocab3-untied"):
        with Checkpoint.open(goldens / name) as checkpoint:
            config = checkpoint.config
            parts = [Part(0, 1, True, False), Part(1, config.n_layer, False, True)]
            read = set[str]()
            plain = checkpoint.read
            checkpoint.read = lambda name, read=read, plain=plain: (read.add(name), plain(name))[1]  # type: ignore
            for part in parts if config.n_layer > 1 else parts[:1]:
                read.clear()
                stage = stages(checkpoint, part)[0]
                weights = {n for n, t in stage.player.program.textures.items() if t.role == "weight"}
                assert read == weights == set(part.parameters(config))
            everything = set().union(*(p.parameters(config) for p in parts[: config.n_layer]))
            assert everything == set(config.parameters) or config.n_layer == 1


def test_sessions_of_a_stage_do_not_see_each_other(goldens: Path, stages: Callable[..., list[Stage]]) -> None:
    ids, wanted = unsplit(goldens / "dhead3-relu")
    with Checkpoint.open(goldens / "dhead3-relu") as checkpoint:
        whole = stages(checkpoint, Part.whole(checkpoint.config))[0]
    first, second = whole.session(), whole.session()
    try:
        other = [(i + 1) % whole.config.vocab_size for i in ids]
        for at, (mine, theirs) in enumerate(zip(ids, other, strict=True)):
            second.answer(at, [theirs], None)
            answer = first.answer(at, [mine], Ask(logits=True))
        alone = [whole.answer(at, [mine], Ask(logits=True)) for at, mine in enumerate(ids)][-1]
        assert np.array_equal(answer.logits, alone.logits)
        np.testing.assert_allclose(answer.logits, wanted[0], atol=2e-4)
    finally:
        second.close()
        first.close()


def test_parts_are_written_and_read() -> None:
    config = Checkpoint.open(None).config
    for text, wanted in {
        "4-5": Part(4, 6, False, True),
        "0-3": Part(0, 4, True, False),
        "2": Part(2, 3, False, False),
        "+0-5": Part(0, 6, False, False),
        "embed": Part(0, 0, True, False),
        "head": Part(6, 6, False, True),
        "embed,0-5": Part(0, 6, True, False),
        "5,head": Part(5, 6, False, True),
    }.items():
        assert Part.parse(text, config) == wanted
        assert Part.parse(str(wanted), config) == wanted
    for text in ("", "6", "4-6", "5-4", "embed,head", "embed,2-3", "1-2,head", "x", "0-3,", ",1", "--", "9" * 9):
        with pytest.raises(ArgumentError):
            Part.parse(text, config)
    whole = [Part(0, 2, True, False), Part(2, 6, False, True)]
    checked_chain(whole, config)
    for chain in ([], whole[:1], whole[1:], [whole[0], Part(3, 6, False, True)], whole[::-1]):
        with pytest.raises(ArgumentError):
            checked_chain(chain, config)


@dataclass(frozen=True)
class Unsplit:
    """Holds generations and activations of the unsplit model."""

    ids: list[int]
    greedy: list[int]
    drawn: list[int]
    beyond: list[int]  # a greedy text that exceeds the context
    logits: Any
    activations: dict[str, Any]


@pytest.fixture(scope="module")
def llama_unsplit(goldens: Path) -> Unsplit:
    folder = goldens / "llama-grouped"
    with LanguageModel.from_pretrained(folder, device="software") as model:
        ids = prompt_of(folder, model.config.n_positions)
        greedy = list(model.generate_ids(ids, LAST, temperature=0))
        drawn = list(model.generate_ids(ids, LAST, temperature=0.9, top_k=20, seed=7))
        beyond = list(model.generate_ids(ids, model.config.n_positions, temperature=0))
        logits, wanted = model.run_with_cache(ids)
        return Unsplit(ids, greedy, drawn, beyond, logits, dict(wanted))


def test_a_closed_model_leaves_no_textures_and_no_process(tmp_path: Path) -> None:
    with load(chat_llama(tmp_path / "model.gguf"), plan="0@here,1@here", device="software") as split:
        before = split.texture_bytes
        split.run_with_cache([1, 2, 3])
        assert split.texture_bytes > before
        split.release_captures()
        assert split.texture_bytes == before
        renderer = split.chat_template.renderer
        split.chat_template.prompt([{"role": "user", "content": "hello"}])
        assert renderer._process
    assert not renderer._process


@pytest.mark.slow
@pytest.mark.parametrize("blocks", mostly_soak(["0", "1", "+0-1", "head", "embed", "0-1"], ("1", "head")))
def test_over_a_server_the_text_is_the_unsplit_one(
    blocks: str, goldens: Path, serve: Any, llama_unsplit: Unsplit
) -> None:
    folder, whole = goldens / "llama-grouped", llama_unsplit
    ids, beyond, wanted = whole.ids, whole.beyond, whole.activations
    server = serve(folder, blocks)
    if blocks == "0-1":  # the server has all blocks
        with pytest.raises(GlgptError, match=r"leaves .* to this machine, not blocks"):
            load(folder, rest=server.url, blocks=(0, 2), device="software")
    with load(folder, rest=server.url, device="software") as split:
        assert list(split.generate_ids(ids, LAST, temperature=0)) == whole.greedy
        assert list(split.generate_ids(ids, LAST, temperature=0.9, top_k=20, seed=7)) == whole.drawn
        assert list(split.generate_ids(ids, len(beyond), temperature=0)) == beyond
        ours, found = split.run_with_cache(ids)
        assert np.array_equal(ours, whole.logits) and list(found) == list(wanted)
        for name, array in wanted.items():
            assert np.array_equal(found[name], array), name
    if blocks == "1":
        with load(folder, rest=server.url, device="software", speculate=True) as split:
            assert list(split.generate_ids(ids, len(beyond), temperature=0)) == beyond
