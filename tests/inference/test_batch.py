"""Tests batches of texts: each text has the same result as alone, whichever other texts are in the batch."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.chat_models import chat_llama
from helpers.reference import within
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from test_model import ATOL, GOLDENS, RTOL, load, reference_of

from glgpt.errors import GlgptError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.batching import lookup
from glgpt.inference.batching.batch import BatchDecoder, Heap, Text
from glgpt.inference.batching.continuations import Continuations, Row
from glgpt.inference.chunks import plan_segments
from glgpt.inference.constraints.constraint import Constraint
from glgpt.inference.constraints.matcher import Matcher
from glgpt.inference.decoder import Decoder
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.models import context

Array = NDArray[Any]
SAMPLED = {"temperature": 0.9, "top_p": 0.95}


def prompts_for(model: LanguageModel, count: int, seed: int = 3) -> list[list[int]]:
    """Returns prompts of different lengths, one of them repeated and one as long as the context allows."""
    rng, most = np.random.default_rng(seed), model.config.n_positions
    lengths = [1 + int(n) % most for n in rng.integers(0, most, count)]
    prompts = [rng.integers(0, model.config.vocab_size, n).tolist() for n in (most, *lengths)]
    return [*prompts[: count - 1], prompts[1]]


def batch_of(model: LanguageModel) -> BatchDecoder:
    assert model._batch
    return model._batch


def alone(model: LanguageModel, prompts: list[list[int]], tokens: int, **sampling: Any) -> list[tuple[list[int], str]]:
    found = []
    for seed, prompt in enumerate(prompts):
        stream = model.generate_ids(prompt, tokens, seed=seed, **sampling)
        found.append((list(stream), stream.stats.stopped))
    return found


def together(
    model: LanguageModel, prompts: list[list[int]], tokens: int, **sampling: Any
) -> list[tuple[list[int], str]]:
    runs = model.generate_batch(prompts, tokens, seeds=range(len(prompts)), **sampling)
    for run in runs:
        run.read()
    return [(run.ids, run.stats.stopped) for run in runs]


FEW = ("dhead2-gelu", "llama-grouped", "vocab3-untied")  # others compile more shaders and run in `make test-slow`


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.soak] * (n not in FEW)) for n in GOLDENS])
def test_each_golden_continues_as_it_does_alone(goldens: Path, name: str) -> None:
    """Fails if a text depends on other texts (also ended ones), its place in the shared caches, or the batch's size."""
    with load(goldens / name) as model:
        wanted = reference_of(goldens / name)
        prompts = prompts_for(model, 11)
        for sampling in ({"temperature": 0}, SAMPLED):
            assert together(model, prompts, 7, **sampling) == alone(model, prompts, 7, **sampling)
        prompt = max(1, min(len(wanted["tokens"]) // 2, len(wanted["tokens"]) - 1))
        ids = wanted["greedy"].tolist()
        found = together(model, [ids[:prompt]] * 3, len(ids) - prompt, temperature=0)
        assert [run for run, _ in found] == [ids[prompt:]] * 3  # equal to transformers' continuation


@pytest.mark.parametrize("name", ["dhead2-gelu", "llama-grouped"])
def test_halves_continue_as_they_do_alone(goldens: Path, name: str) -> None:
    """Fails if rows get wrong sums with f16 weights, where a fragment computes only four of a batch's eight rows."""
    with load(goldens / name, "f16") as model:
        prompts = prompts_for(model, 9)
        assert together(model, prompts, 5, temperature=0) == alone(model, prompts, 5, temperature=0)


@pytest.mark.parametrize("kernel", ["4x4", "8x4"])
def test_logits_are_the_same_bits_in_a_batch_of_any_size(goldens: Path, kernel: str) -> None:
    """Fails if a row's sums depend on the number of rows, or on the contents of other rows."""
    with load(goldens / "wide", kernel=kernel) as model:
        prompts = prompts_for(model, 9)[1:]  # all except the one that fills the context
        prompts = [ids[: model.config.n_positions - 4] for ids in prompts]
        decoder, rows = batch_of(model), list[Array]()
        decoder.reserve(400)
        for count in (8, 3, 1):
            texts = [
                decoder.begin(ids, [Sampler(SamplingOptions(temperature=0))], [0])[0][0] for ids in prompts[:count]
            ]
            for token in (1, 2, 0):
                decoder.append(texts, [token] * count)
            rows.append(decoder.logits())
            for text in texts:
                decoder.end(text)
        assert np.array_equal(rows[0][:3], rows[1]) and np.array_equal(rows[0][:1], rows[2])
        for ids, ours in zip(prompts, rows[0], strict=True):
            within(ours, model.logits([*ids, 1, 2, 0])[-1], ATOL, RTOL)


def test_texts_pause_come_and_lose_their_rows(goldens: Path) -> None:
    """Fails if a text continues differently after a pause, after its rows have moved, or after a second prefill."""
    with load(goldens / "dhead3-relu") as model:
        decoder, most = batch_of(model), model.config.n_positions
        prompts = [ids[: most // 2] for ids in prompts_for(model, 4)]
        decoder.reserve(1)
        texts = [decoder.begin(ids, [Sampler(SamplingOptions(temperature=0))], [0])[0][0] for ids in prompts]
        for i in range(12):
            chosen = [text for n, text in enumerate(texts) if (i + n) % (n + 2) and len(text.ids) < most][::-1]
            if i == 6:
                decoder.reserve(2 * len(decoder._heap.uses))  # all texts are prefilled again
            if chosen:
                decoder.append(chosen, [(i + len(text.ids)) % 7 % model.config.vocab_size for text in chosen])
                for text, ours in zip(chosen, decoder.logits(), strict=True):
                    within(ours, model.logits(text.ids)[-1], ATOL, RTOL)


def test_idle_texts_make_room(goldens: Path) -> None:
    """Fails if full caches refuse a text although other texts are idle, or evict a text that is in use."""
    with load(goldens / "dhead2-gelu") as model:
        decoder = batch_of(model)
        decoder.reserve(1)
        height, ids = len(decoder._heap.uses), prompts_for(model, 2)[0][:40]
        texts = [decoder.begin(ids, [Sampler(SamplingOptions(temperature=0))], [0])[0][0] for _ in range(height // 16)]
        assert any(not text.rows for text in texts) and texts[-1].rows
        decoder.append(texts[:1], [0])  # the first text, which lost its rows, is prefilled again
        within(decoder.logits()[0], model.logits([*ids, 0])[-1], ATOL, RTOL)


def test_abandoned_batches_make_room(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if prompts run one after another because abandoned batches still hold rows of the shared caches."""
    with load(goldens / "dhead2-gelu") as model:
        prompts = [[i % model.config.vocab_size for i in range(first, first + 20)] for first in range(8)]
        wanted, sizes, step = alone(model, prompts, 8, eos=False, **SAMPLED), list[int](), BatchDecoder.step
        for _ in range(6):
            next(model.generate_batch(prompts, 8, eos=False)[0])

        def counted(self: BatchDecoder, texts: Sequence[Text], x: Any) -> None:
            sizes.append(len(texts))
            step(self, texts, x)

        monkeypatch.setattr(BatchDecoder, "step", counted)
        assert together(model, prompts, 8, eos=False, **SAMPLED) == wanted
        assert sizes == [8] * 7


def test_interleaved_generations_and_batches_keep_apart(goldens: Path) -> None:
    """Fails if an active batch loses its position when another generation uses the model's caches."""
    with load(goldens / "dhead2-gelu") as model:
        prompts = [ids[:9] for ids in prompts_for(model, 3)]
        wanted = alone(model, prompts, 8, **SAMPLED)
        runs = model.generate_batch(prompts, 8, seeds=range(3), **SAMPLED)
        other = model.generate_ids(prompts[0], 8, seed=0, **SAMPLED)
        more = model.generate_batch(prompts[::-1], 8, seeds=[2, 1, 0], **SAMPLED)
        mixed = [list[int](), list[int]()]
        for _ in range(8):
            next(runs[1], None)
            mixed[0].append(next(other))
            next(more[0], None)
        assert mixed[0] == wanted[0][0]
        for run, back, (ids, _) in zip(runs, more[::-1], wanted, strict=True):
            run.read()
            back.read()
            assert run.ids == ids and back.ids == ids


@pytest.mark.parametrize("where", ["_send", "best"])
def test_texts_are_the_same_after_an_interrupt(goldens: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Fails if Ctrl-C during a step leaves a text with an extra token or an extra row of the caches."""
    with load(goldens / "dhead2-gelu") as model:
        prompts = [ids[:9] for ids in prompts_for(model, 3)]
        wanted = alone(model, prompts, 8, **SAMPLED)
        runs, decoder = model.generate_batch(prompts, 8, seeds=range(3), **SAMPLED), batch_of(model)
        next(runs[0])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(decoder, where, lambda *_: signal.raise_signal(signal.SIGINT))
            runs[0].read()
        for run, (ids, _) in zip(runs[1:], wanted[1:], strict=True):
            run.read()
            assert run.ids == ids


@pytest.mark.parametrize(("owner", "where"), [(Decoder, "first"), (BatchDecoder, "following"), (Matcher, "accept")])
def test_constrained_texts_match_after_an_interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, where: str) -> None:
    """Fails if Ctrl-C during a step leaves a constraint a token ahead of its text."""
    calls = itertools.count(1)

    def interrupted(*args: Any) -> Any:
        found = work(*args)
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return found

    constraint = Constraint.regex("(one|two|three)( (one|two|three)){9}")
    with load(None) as model:
        sampling: dict[str, Any] = {"seeds": range(3), "constraint": constraint, "temperature": 1.0}
        wanted = [run.read() for run in model.generate_batch(["a", "b", "c"], 40, **sampling)]
        runs = model.generate_batch(["a", "b", "c"], 40, **sampling)
        if where != "first":
            next(runs[0])
        work = getattr(owner, where)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, where, interrupted)
            runs[0].read()
        assert [run.read() for run in runs[1:]] == wanted[1:]


def test_a_long_prompt_is_read_between_the_steps_of_other_texts(tmp_path: Path) -> None:
    """Regression: prefilling a long prompt delayed all other texts, and continued even if the text was cancelled."""
    with LanguageModel.from_pretrained(chat_llama(tmp_path / "a.gguf", context=1024), device="software") as model:
        rng, (decoder, batch) = np.random.default_rng(0), model.decoders or pytest.fail("split")
        ids = [rng.integers(0, model.config.vocab_size, n).tolist() for n in (900, 5)]
        ids += [ids[0][:512] + ids[0][:400]]
        wanted = [model.generate_ids(own, 12, eos=False, temperature=0) for own in ids]
        tokens = [list(each) for each in wanted]

        def row(i: int) -> Row:
            chunks = plan_segments((512,), len(ids[i]), model.context, decoder.sizes)
            return Row(list(ids[i]), model.sampler(SamplingOptions(temperature=0)), 12, chunks)

        rows = [row(i) for i in range(3)]
        texts = Continuations(batch, rows[1:2], model.context, ())
        batch.reserve(4096)
        texts.advance()
        texts.add(rows[0])
        for n in (2, 3, 4):
            texts.advance()
            assert (len(rows[1].ready), rows[0].text) == (n, None)
        while not rows[0].ended:
            texts.advance()
        assert [list(r.ready) for r in rows[:2]] == tokens[:2]
        assert (rows[0].run.prefill_tokens, rows[0].run.cached_tokens) == (900, 0)
        texts.add(rows[2])  # has the first 512 ids of the other prompt, and thus the same first chunks
        twin = row(2)
        texts.add(twin)
        texts.advance()
        assert texts.waiting == 2
        texts.cancel(rows[2])
        while not twin.ended:
            texts.advance()
        assert list(twin.ready) == tokens[2] and 512 <= twin.run.cached_tokens < 912


def test_a_stop_text_ends_its_row_alone() -> None:
    """Fails if a text continues after its stop text, or ends other texts."""
    with load(None) as model:
        sampling: dict[str, Any] = {"temperature": 0, "stop": ["\n"]}
        prompts = ["First Citizen:\nBefore", "ROMEO:", "To be"]
        wanted = [model.generate(prompt, 20, **sampling).read() for prompt in prompts]
        runs = model.generate_batch(prompts, 20, **sampling)
        assert runs[2].read() == wanted[2]
        for run in runs:
            run.read()
        assert [run.text for run in runs] == wanted
        assert "text" in {run.stats.stopped for run in runs}


def test_what_cannot_be_continued_is_refused(goldens: Path) -> None:
    with load(goldens / "dhead2-gelu") as model:
        for prompts, options, words in (
            ([[1], []], {}, "the prompt is empty"),
            ([[1], [10**6]], {}, "outside the vocabulary"),
            ([[1], [2]], {"seeds": [1]}, "1 seeds were given for 2 prompts"),
            ([[1]], {"tokens": -1}, "tokens is -1"),
            ([[1]], {"temperature": -1}, "temperature"),
        ):
            with pytest.raises(GlgptError, match=words):
                model.generate_batch(prompts, **options)
        assert model.generate_batch([]) == [] and model.generate_batch([[1]], 0)[0].read() == ""
        runs = model.generate_batch([[1], [2]], 3)
    with pytest.raises(GlgptError, match="closed"):
        runs[0].read()


def test_a_texture_limit_is_kept(goldens: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fails if shared caches exceed --max-texture-memory, or if the model cannot generate a text without them."""
    with load(goldens / "wide") as model:
        needed = model.texture_bytes
    with load(goldens / "wide", max_texture_memory=needed + 1000) as model:
        with pytest.raises(GlgptError, match="several texts at once need"):
            model.generate_batch([[1], [2]], 3)[0].read()
        expected = list(model.generate_ids([1], 4, temperature=0))
    with load(goldens / "wide", max_texture_memory=needed + 1000, speculate=True) as model:
        assert list(model.generate_ids([1], 4, temperature=0)) == expected
        assert list(model.generate_ids([1], 4, temperature=0)) == expected
        assert caplog.text.count("without speculative decoding where memory does not suffice: several texts at") == 1


def test_a_text_continues_without_guesses_where_memory_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a text with guesses (speculative decoding) failed when another text made the context grow.

    Later texts had no guesses, even if memory sufficed again.
    """
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 256)
    path = chat_llama(tmp_path / "model.gguf", context=2048)
    sampled: dict[str, Any] = {"temperature": 0.7, "seed": 3, "eos": False}
    with LanguageModel.from_pretrained(path, device="software", context=512) as model:
        grown, wanted = model.player.program.nbytes(), list(model.generate_ids([1, 2, 3], 100, **sampled))
        other = list(model.generate_ids([5] * 300, 4, temperature=0, eos=False))
    options: dict[str, Any] = {"max_texture_memory": grown + 1000, "speculate": True}
    with LanguageModel.from_pretrained(path, device="software", **options) as model:
        running = model.generate_ids([1, 2, 3], 100, **sampled)
        found = [next(running) for _ in range(20)]
        shared = batch_of(model)
        assert shared.nbytes and model.context == 256
        assert list(model.generate_ids([5] * 300, 4, temperature=0, eos=False)) == other and model.context == 512
        assert found + list(running) == wanted
        # Of the 100 tokens, two came from prefills, since the caches were filled twice.
        assert (running.stats.prefill_tokens, running.stats.decode_tokens) == (3, 98)
        shared.most = None  # as if memory sufficed
        assert list(model.generate_ids([1, 2, 3], 100, **sampled)) == wanted and shared.nbytes


def test_a_heap_gives_rows_below_each_other() -> None:
    """Fails if a row is given to two texts, or a free row is never used again."""
    heap = Heap(10)
    assert (heap.take(4, 3), heap.take(4, 4), heap.take(4, 4)) == (0, 3, None)
    assert heap.room(range(7)) == 3
    heap.release([0, 1, 2])
    assert (heap.take(3, 3), heap.take(3, 1), heap.take(3, 3)) == (7, 0, None)
    heap.release(range(3, 7))
    assert heap.room([0, 7, 8, 9]) == 6 and heap.take(6, 6) == 1


def test_a_heap_leaves_no_gaps() -> None:
    """Fails if a search that starts at the end misses free rows at the start, or the rows of rejected guesses."""
    heap = Heap(16)
    assert [heap.take(4, 3) for _ in range(5)] == [0, 3, 6, 9, 12]
    heap.release(range(12))
    assert [heap.take(4, 3) for _ in range(3)] == [0, 3, 6]
    heap = Heap(16)
    assert heap.take(8, 8) == 0
    heap.release(range(3, 8))
    assert heap.take(8, 8) == 3


def test_a_text_is_itself() -> None:
    """Fails if two samples of one prompt are treated as the same text."""
    assert Text([1]) != Text([1])


@pytest.mark.parametrize("name", ["dhead3-relu", "llama-grouped", "one-f16"])
def test_logits_of_several_prompts_are_theirs(goldens: Path, name: str) -> None:
    """Fails if a prompt's logits depend on its padding or on the ids of other prompts."""
    with load(goldens / name) as model:
        prompts = prompts_for(model, 5)
        found = model.logits_batch(prompts)
        for ids, logits in zip(prompts, found, strict=True):
            within(logits, model.logits(ids), ATOL, RTOL)
        changed = [[(i + 1) % model.config.vocab_size for i in ids] for ids in prompts]
        again = model.logits_batch([prompts[0], *changed[1:]])
        assert np.array_equal(again[0], found[0])
        assert model.logits_batch([]) == []


def test_values_of_a_token_that_the_text_lacks_may_overflow(goldens: Path, tmp_path: Path) -> None:
    """Fails if a text is padded with a token that it lacks and whose values overflow.

    Attention multiplies the values of padding by 0, and infinity times 0 is NaN.
    """
    folder, prompt = shutil.copytree(goldens / "llama-grouped", tmp_path / "model"), [3, 4, 5, 6, 7]
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        for name, matrix in weights.items():  # the first column of the residual stream is 0, except for token 0
            if name.endswith("embed_tokens.weight"):
                matrix[:, 0] = 0
                matrix[0] = np.eye(1, matrix.shape[1])
            elif name.endswith(("o_proj.weight", "down_proj.weight")):
                matrix[0] = 0
            elif name.endswith(("gate_proj.weight", "up_proj.weight")):
                matrix[:, 0] = 1e30
        save_file(weights, path, {"format": "pt"})
    with load(folder) as model:
        with pytest.raises(GlgptError, match="not finite"):
            model.logits([0, *prompt])
        logits = model.logits(prompt)
        within(model.logits_batch([prompt])[0], logits, ATOL, RTOL)
        wanted = np.logaddexp.reduce(logits[:-1], axis=1) - logits[np.arange(4), prompt[1:]]
        within(next(iter(model.losses([prompt]))), wanted, ATOL, RTOL)


@pytest.mark.parametrize("name", ["dhead2-gelu", "llama3-untied"])
def test_losses_are_those_of_the_logits(goldens: Path, name: str) -> None:
    """Fails if a token's loss is computed from another position's logits, or padding has a loss."""
    with load(goldens / name) as model:
        texts = [ids for ids in prompts_for(model, 6) if len(ids) > 1]
        for ids, losses in zip(texts, model.losses(texts), strict=True):
            logits = model.logits(ids[:-1]).astype(np.float64)
            wanted = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(ids) - 1), ids[1:]]
            within(losses, wanted, ATOL, RTOL)
        with pytest.raises(GlgptError, match="outside the vocabulary"):
            list(model.losses([[1, 10**6]]))


def test_losses_are_the_same_between_other_calls(goldens: Path) -> None:
    """Fails if another call breaks losses that are still being read, or if a closed model still returns losses."""
    with load(goldens / "dhead2-gelu") as model:
        texts = [[i % 7, 1, 2] for i in range(40)]  # several batches
        wanted, found = list(model.losses(texts)), []
        for losses, shorter in zip(model.losses(texts), model.losses([ids[:2] for ids in texts]), strict=True):
            found.append(losses)
            model.logits_batch([texts[0]])
            assert len(shorter) == 1
        np.testing.assert_array_equal(found, wanted)
        late = model.losses(texts)
    with pytest.raises(GlgptError, match="closed"):
        next(late)
    assert not model.device.texture_bytes


@pytest.mark.slow
def test_guesses_leave_the_text_unchanged(tmp_path: Path) -> None:
    """Fails if a guessed token has other logits than in a separate step, or a wrong guess stays in the caches."""
    seen = []
    always = lookup.Speculation.checked_step

    def measured(self: Any, seconds: float, guessed: int, accepted: int) -> None:
        seen.append((guessed, accepted))
        always(self, 0.0, guessed, accepted)  # as if guessing always saved time

    path = chat_llama(tmp_path / "model.gguf", context=256)
    prompt, repeated = "hello, hello, hello, hello, are you", "one two three, one two three, one two"
    messages = [{"role": "user", "content": repeated}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup.Speculation, "checked_step", measured)
        with (
            LanguageModel.from_pretrained(path, device="software") as plain,
            LanguageModel.from_pretrained(path, device="software", speculate=True) as guessing,
        ):
            for sampling in ({"temperature": 0}, {"temperature": 0.05, "seed": 3}, {"top_k": 2, "seed": 4}):
                for ask in ("generate", "chat", "slides"):
                    texts, tokens = [], 280 if ask == "slides" else 60
                    for model in (plain, guessing):
                        if ask == "chat":
                            run = model.chat(messages, tokens, **sampling)
                        else:
                            run = model.generate(prompt, tokens, eos=False, **sampling)
                        texts.append((run.read(), run.ids, run.stats.stopped))
                    assert texts[0] == texts[1], (sampling, ask)
    assert len(seen) > 20 and any(accepted for _, accepted in seen) and any(a < g for g, a in seen)
