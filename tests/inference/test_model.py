"""Tests models on the device: transformers' goldens, cached decode, every prompt length, and refusals."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reference import gpt2, random_weights, save_checkpoint, within
from helpers.soak import mostly_soak
from numpy.typing import NDArray

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.chunks import window_start
from glgpt.inference.generation import Generation
from glgpt.inference.loading import load as load_model
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.kernel import KERNELS
from glgpt.tuning.kernel_selection import FETCHES, STORAGES

Array = NDArray[Any]
GOLDENS = sorted(path.parent.name for path in (Path(__file__).parents[1] / "goldens").glob("*/reference.npz"))
ATOL, RTOL = 2e-4, 1e-5  # the project's documented tolerance of f32
# A float16 has eleven significant bits. Each of a dozen products adds errors of about 2^-12 of its inputs' size, and a
# sharp softmax amplifies errors of scores. The largest error in the goldens is 4% of an activation's root mean square.
HALF = 0.06
TEXT = (
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\n"
    "You are all resolved rather to die than to famish?\n\nAll:\nResolved. resolved.\n\nFirst Citizen:\n"
    "First, you know Caius Marcius is chief enemy to the people.\n\nAll:\nWe know't, we know't.\n\n"
    "First Citizen:\nLet us kill him, and we'll have corn at our own price.\nIs't a verdict?\n\n"
    "All:\nNo more talking on't; let it be done: away, away!\n\nSecond Citizen:\nOne word, good citizens.\n\n"
    "First Citizen:\nWe are accounted poor citizens, the patricians good.\nWhat authority surfeits on would "
    "relieve us:\nif they would yield us but the superfluity, while it were wholesome, we might guess they\n"
    "relieved us humanely;\n"
)


def load(name: Path | None, dtype: str = "f32", **options: Any) -> LanguageModel:
    model = load_model(name, dtype, **{"device": os.environ.get("GLGPT_TEST_DEVICE", "software")} | options)
    if name:
        model.eos_ids = ()  # the references continue after the end of text
    return model


def reference_of(folder: Path) -> dict[str, Array]:
    with np.load(folder / "reference.npz") as file:
        return {name: file[name] for name in file.files}


def greedy(model: LanguageModel, prompt: Sequence[int], tokens: int) -> list[int]:
    return [*prompt, *model.generate_ids(prompt, tokens, temperature=0)]


def row_of_logits(model: LanguageModel) -> Array:
    """Returns the row of logits that the device has computed last."""
    view = model.player.entry("decode").outputs["logits"]
    return view.unpack(model.player.read(view.texture))[0]


def size(values: Array) -> float:
    """Returns the root mean square of the finite values."""
    return float(np.sqrt(np.square(values[np.isfinite(values)], dtype=np.float64).mean()))


def agrees(model: LanguageModel, wanted: dict[str, Array]) -> None:
    """Compares every activation and the logits with a golden, by name and in order."""
    logits, found = model.run_with_cache(wanted["tokens"].tolist())
    assert list(found) == list(model.config.activations)
    for name, ours in found.items():
        half = HALF * size(wanted[name])
        within(ours, wanted[name], *((half, 0) if model.dtype == "f16" else (ATOL, RTOL)), name)
    assert np.array_equal(logits, found["logits"])


def test_the_names_are_these() -> None:
    """Fails if a name changes on which users, pages and stored references rely."""
    assert (
        list(GPT2Config(n_layer=2).activations)
        == (
            "embed h.0.ln_1 h.0.attn.q h.0.attn.k h.0.attn.v h.0.attn.scores h.0.attn.pattern h.0.attn.z h.0.attn.out "
            "h.0.resid_mid h.0.ln_2 h.0.mlp.pre h.0.mlp.act h.0.mlp.out h.0.resid_post h.1.ln_1 h.1.attn.q h.1.attn.k "
            "h.1.attn.v h.1.attn.scores h.1.attn.pattern h.1.attn.z h.1.attn.out h.1.resid_mid h.1.ln_2 h.1.mlp.pre "
            "h.1.mlp.act h.1.mlp.out h.1.resid_post ln_f logits"
        ).split()
    )


@pytest.mark.parametrize("name", GOLDENS)
def test_goldens_agree(goldens: Path, name: str) -> None:
    """Fails if an odd shape, activation, head or checkpoint layout gives other numbers than transformers."""
    wanted = reference_of(goldens / name)
    with load(goldens / name) as model:
        agrees(model, wanted)
        prompt = max(1, min(len(wanted["tokens"]) // 2, len(wanted["tokens"]) - 1))  # as in tests/goldens/make.py
        ids = wanted["greedy"].tolist()
        assert greedy(model, ids[:prompt], len(ids) - prompt) == ids


CHOICES = [(kernel, fetch) for kernel in KERNELS for fetch in FETCHES]
KEPT = CHOICES[1], CHOICES[3], CHOICES[4]  # together these have each kernel, fetch and storage


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "fetch"), mostly_soak(CHOICES, KEPT))
def test_every_kernel_fetch_and_storage_agrees(goldens: Path, kernel: str, fetch: str) -> None:
    """Fails if a choice that the probe may make on another device gives other numbers."""
    storage = STORAGES[(list(KERNELS).index(kernel) + FETCHES.index(fetch)) % 2]
    wanted = reference_of(goldens / "dhead2-gelu")
    with load(goldens / "dhead2-gelu", kernel=kernel, fetch=fetch, storage=storage) as model:
        assert (model.choice.kernel.name, model.choice.options.fetch) == (kernel, fetch)
        assert model.choice.options.storage == storage
        agrees(model, wanted)
        assert greedy(model, wanted["greedy"][:35].tolist(), 16) == wanted["greedy"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "storage"), [("inverse-layer-f16", "uint"), pytest.param("wide", "float", marks=pytest.mark.soak)]
)
def test_halves_agree_within_their_bound(goldens: Path, name: str, storage: str) -> None:
    """Fails if packed float16 values are multiplied with wrong columns, or rounded to fewer than eleven bits."""
    with load(goldens / name, "f16", storage=storage) as model:
        agrees(model, reference_of(goldens / name))


@pytest.mark.parametrize("dtype", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
def test_cached_decode_is_the_uncached_forward(tmp_path: Path, dtype: str) -> None:
    """Fails if a decoded token uses other keys, norms or positions than a pass over the whole text."""
    config = GPT2Config(vocab_size=61, n_positions=40, n_embd=24, n_layer=2, n_head=2, n_inner=50)
    weights = random_weights(config)
    with load(save_checkpoint(tmp_path, config, weights), dtype) as model:
        ids = [5, 60, 0]
        wanted = gpt2(config, weights, ids)["logits"]
        near = HALF * size(wanted) if dtype == "f16" else 2e-5  # in f32, the results differ only by rounding
        for n, token in enumerate(model.generate_ids(ids[:], 30, seed=1)):
            text = [*ids, token] if 0 < n < 29 else ids  # the first and the last token are not decoded yet
            within(row_of_logits(model), model.logits(text)[-1], near, where=f"after {len(text)} tokens")
            ids.append(token)
        wanted = gpt2(config, weights, ids[:-1])["logits"]
        within(row_of_logits(model), wanted[-1], near, where="float64")


def test_every_prompt_length_works(goldens: Path) -> None:
    """Fails if a length that needs padding, or several chunks, gives other numbers."""
    wanted = reference_of(goldens / "dhead2-gelu")
    ids = wanted["tokens"].tolist()
    with load(goldens / "dhead2-gelu") as model:
        for n in range(1, len(ids) + 1):
            within(model.logits(ids[:n]), wanted["logits"][:n], ATOL, RTOL, f"{n} tokens")
            assert next(model.generate_ids(ids[:n], 1, temperature=0)) == wanted["logits"][n - 1].argmax()
            within(row_of_logits(model), wanted["logits"][n - 1], ATOL, RTOL, f"the last of {n} tokens")


def test_chunks_give_what_one_chunk_gives(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a later chunk misses the keys of an earlier one."""
    ids = reference_of(goldens / "dhead2-gelu")["tokens"].tolist()[:64]
    with load(goldens / "dhead2-gelu") as model:
        whole = model.run_with_cache(ids)[1]
        monkeypatch.setattr("glgpt.inference.capture.recorded_sizes", lambda _: (16, 1))
        pieces = model.run_with_cache(ids)[1]
    for name, value in whole.items():
        within(pieces[name], value, 2e-6, 2e-6, name)


@pytest.mark.parametrize(
    ("prompt", "tokens", "reads"),
    [(69, 2, [69]), (1, 70, [1]), (1, 80, [1, 36]), (65, 80, [65, 36, 36, 36]), (70, 38, [70, 36, 36])],
)
def test_beyond_the_context_a_text_goes_on_from_its_later_half(
    goldens: Path, prompt: int, tokens: int, reads: list[int]
) -> None:
    """Fails if a token is lost, or is computed beyond the context or from keys of other positions."""
    ids = [3] * prompt
    with load(goldens / "dhead2-gelu") as model:
        made = list(running := model.generate_ids(ids, tokens, temperature=0))
        run = running.stats
        assert (run.stopped, run.slides, run.prefill_tokens) == ("tokens", len(reads) - 1, sum(reads))
        assert len(made) == tokens and run.decode_tokens == tokens - len(reads)
        text = [*ids]
        for id_ in made:
            row = model.logits(text[window_start(len(text), 70) :])[-1]
            assert id_ == row.argmax()
            text.append(id_)
        assert list(model.generate_ids(ids, 0)) == []


def test_the_end_of_text_ends_generation(goldens: Path) -> None:
    with load(goldens / "wide") as model:
        made = list(model.generate_ids([7, 8], 12, temperature=0))
        model.eos_ids = (made[6],)
        first = made.index(made[6])
        assert list(ended := model.generate_ids([7, 8], 12, temperature=0)) == made[:first]
        assert ended.stats.stopped == "eos" and ended.stats.decode_tokens == first
        model.eos_ids = (129, made[0])
        assert list(ended := model.generate_ids([7, 8], 12, temperature=0)) == [] and ended.stats.stopped == "eos"


def test_a_seed_makes_the_same_text_and_generators_do_not_disturb_each_other(goldens: Path) -> None:
    """Fails if a second generator, or a capture, overwrites the first one's keys."""
    settings: list[dict[str, Any]] = [
        {"seed": 1},
        {"seed": 2},
        {"temperature": 0},
        {"seed": 4, "top_k": 5, "top_p": 0.9},
    ]
    with load(goldens / "wide") as model, load(goldens / "bf16") as other:
        alone = [list(model.generate_ids([4, i], 15, **s)) for i, s in enumerate(settings)]
        assert alone[0] != alone[1]
        assert alone == [list(model.generate_ids([4, i], 15, **s)) for i, s in enumerate(settings)]
        apart = list(other.generate_ids([1], 15, seed=1))
        running: list[Iterator[int]] = [model.generate_ids([4, i], 15, **s) for i, s in enumerate(settings)]
        beside = other.generate_ids([1], 15, seed=1)
        together: list[list[int]] = [[] for _ in running]
        turn = 0
        for token in beside:
            assert token == apart[turn]
            for made, tokens in zip(together, running, strict=True):
                made.append(next(tokens))
            model.logits([1, 2, 3])
            turn += 1
        assert together == alone and turn == 15


def test_only_what_is_asked_for_is_returned(goldens: Path) -> None:
    wanted = reference_of(goldens / "wide")
    ids = wanted["tokens"].tolist()
    with load(goldens / "wide") as model:
        for names in (["h.1.mlp.pre"], ("ln_f", "embed"), (), {"logits"}, iter(["h.0.attn.q", "h.1.attn.pattern"])):
            asked = sorted(names)
            logits, found = model.run_with_cache(ids, iter(asked))
            assert list(found) == [name for name in GPT2Config(n_layer=2).activations if name in asked]
            for name, value in (found | {"logits": logits}).items():
                within(value, wanted[name], ATOL, RTOL, name)
            assert sorted(model.raw(ids, iter(asked))) == asked
        with pytest.raises(GlgptError, match=r"'h\.2\.ln_1' is not an activation of wide"):
            model.run_with_cache(ids, ["embed", "h.2.ln_1"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 41, "the prompt has 41 tokens and the context of wide holds 40"),
        ([1, 130], "id 130 at position 1 is outside the vocabulary of 130"),
        ([1, 2, -1], "id -1 at position 2 is outside the vocabulary of 130"),
        ("To be", "wide has no tokenizer files"),
    ],
)
def test_prompts_that_cannot_be_run_are_refused(goldens: Path, ids: Any, message: str) -> None:
    with load(goldens / "wide") as model:
        with pytest.raises(GlgptError, match=message):
            model.generate_ids(ids)
        if not isinstance(ids, str):
            for ask in (model.logits, model.run_with_cache):
                with pytest.raises(GlgptError, match=message):
                    ask(ids)
        with pytest.raises(GlgptError, match="tokens is -1"):
            model.generate_ids([1], -1)


def overflowing(folder: Path, name: str, row: int | slice, value: float) -> Path:
    """Writes a random checkpoint in which the weights in `row` of the parameter `name` are `value` or -`value`."""
    config = GPT2Config(vocab_size=40, n_positions=20, n_embd=8, n_layer=2, n_head=2, tie_word_embeddings=False)
    weights = random_weights(config)
    weights[name][row] = value * np.sign(weights[name][row])
    return save_checkpoint(folder, config, weights)


def read(runs: Sequence[Generation]) -> list[str]:
    return [run.read() for run in runs]


PATHS: dict[str, Callable[[LanguageModel, list[int]], object]] = {
    "logits": lambda model, ids: model.logits(ids),
    "logits_batch": lambda model, ids: model.logits_batch([ids, [4]]),
    "losses": lambda model, ids: list(model.losses([[*ids, 0], [4, 5]])),
    "greedy": lambda model, ids: list(model.generate_ids(ids, 1, temperature=0)),
    "sampled": lambda model, ids: list(model.generate_ids(ids, 1)),
    "top-k": lambda model, ids: list(model.generate_ids(ids, 1, top_k=3)),
    "top-p": lambda model, ids: list(model.generate_ids(ids, 1, top_p=0.9)),
    "on the host": lambda model, ids: list(model.generate_ids(ids, 1, repetition_penalty=1.1)),
    "biased": lambda model, ids: list(model.generate_ids(ids, 1, logit_bias={7: -np.inf})),
    "text": lambda model, ids: model.generate(ids, 1).read(),
    "batch, greedy": lambda model, ids: read(model.generate_batch([ids, ids], 1, temperature=0)),
    "batch, sampled": lambda model, ids: read(model.generate_batch([ids, [4]], 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [("wte.weight", slice(None), 1e38), ("wte.weight", 2, 1e25), ("lm_head.weight", 7, 3e38)],
    ids=["every embedding", "one embedding", "one logit"],
)
def test_every_path_refuses_logits_that_are_not_finite(tmp_path: Path, fault: tuple[str, int | slice, float]) -> None:
    """Fails if a path continues after an overflow that became a zero, or hides an infinite logit."""
    folder, ids = overflowing(tmp_path, *fault), [1, 3, 2]
    with load(folder) as model:
        assert not np.isfinite(model.run_with_cache(ids)[0][-1]).all()
        for path, ask in PATHS.items():
            with pytest.raises(GlgptError, match="not finite"):
                pytest.fail(f"{path} answered {ask(model, ids)!r}")
    with load(folder, plan="0-0@here,1-1@here") as model, pytest.raises(GlgptError, match="not finite"):
        list(model.generate_ids(ids, 1))


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_p": 0.9}], ids=str)
def test_tokens_before_an_overflow_are_given(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Fails if tokens are lost because a later token, whose logits overflow, was computed ahead."""
    folder, ids = overflowing(tmp_path, "wpe.weight", 6, 1e25), [1, 2, 3]

    def given(tokens: Iterator[int]) -> list[int]:
        found = []
        with pytest.raises(GlgptError, match="not finite"):
            for token in tokens:
                found.append(token)
        return found

    with load(folder) as model:
        alone = given(model.generate_ids(ids, 9, **settings))
        assert len(alone) == 4
        seeds = [settings.get("seed", 0)] * 2
        sampling = {name: value for name, value in settings.items() if name != "seed"}
        for run in model.generate_batch([ids, ids], 9, seeds=seeds, **sampling):
            with pytest.raises(GlgptError, match="not finite"):
                run.read()
            assert run.ids == alone
    with load(folder, plan="0-0@here,1-1@here", speculate=True) as model:
        assert given(model.generate_ids(ids, 9, **settings)) == alone


def test_logits_that_overflow_are_refused_and_can_be_looked_into(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=40, n_positions=20, n_embd=8, n_layer=1, n_head=2)
    weights = random_weights(config)
    weights["wte.weight"] *= np.float32(1e38)
    with load(save_checkpoint(tmp_path, config, weights)) as model:
        with pytest.raises(GlgptError, match="not finite"):
            model.logits([1, 2, 3])
        assert not np.isfinite(model.run_with_cache([1, 2, 3])[1]["logits"]).all()


@pytest.mark.soak
@pytest.mark.slow
def test_the_embedded_model_is_float64_to_rounding() -> None:
    """Compares the embedded model at its full context: every activation, and prompts of all chunk sizes."""
    with load(None) as model, Checkpoint.open() as checkpoint:
        ids = model.encode(TEXT)[:256]
        assert len(ids) == 256
        weights = {name: checkpoint.read(name) for name in checkpoint.names}
        wanted = gpt2(model.config, weights, ids)
        agrees(model, wanted | {"tokens": np.array(ids)})
        for n in (1, 15, 16, 17, 64, 65, 255, 256):
            assert list(model.generate_ids(ids[:n], 1, temperature=0)) == [wanted["logits"][n - 1].argmax()]
            within(row_of_logits(model), wanted["logits"][n - 1], ATOL, RTOL, f"after {n} tokens")
            if n == len(ids):
                continue  # the next token exceeds the context
            for token in list(model.generate_ids(ids[:n], 2, temperature=0))[1:]:  # continues from the prompt's caches
                logits = model.logits([*ids[:n], int(wanted["logits"][n - 1].argmax())])[-1]
                within(row_of_logits(model), logits, ATOL, RTOL, f"decoded after {n} tokens")
                assert token == logits.argmax()


@pytest.mark.slow
def test_halves_cost_the_embedded_model_little() -> None:
    """Fails if the mean KL divergence of the next token's distribution in f16 from f32 is 1e-4 nats or more."""
    with load(None) as model, load(None, "f16") as half:
        ids = model.encode(TEXT)[:256]
        p, q = (m.logits(ids).astype(np.float64) for m in (model, half))
    p, q = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (p, q))
    assert (np.exp(p) * (p - q)).sum(axis=1).mean() < 1e-4
