"""Tests batched sessions: one forward pass runs a row of each session, and each gets the bits that it gets alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.stages.batched_stage import BatchedStage, SessionCache, StepInput
from glgpt.inference.stages.stage import Answer, Stage
from glgpt.models.part import Part
from glgpt.split.batching_executor import BatchingExecutor, _Task
from glgpt.split.engine import Engine, StepRequest
from glgpt.split.sessions import LapsedError, Session
from glgpt.wire.messages import Ask, Step, decode_answer

LOGITS = Ask(logits=True)
PARTS = {"whole": (0, None, True, True), "back": (1, None, False, True), "middle": (0, None, False, False)}


@pytest.fixture(params=["dhead2-gelu", "llama-grouped"])
def folder(goldens: Path, request: pytest.FixtureRequest) -> Path:
    return goldens / str(request.param)


@pytest.fixture
def together() -> Iterator[Any]:
    """Yields a function that loads a part of a model. The function returns a `BatchedStage`, and the `Stage` inside."""
    made: list[Any] = []

    def load(folder: Path, which: str, texts: int = 8) -> tuple[Any, Stage]:
        with Checkpoint.open(folder) as checkpoint:
            n = checkpoint.config.n_layer
            first, _, embed, head = PARTS[which]
            stage = Stage.load(checkpoint, Part(min(first, n - 1), n, embed, head), device="software")
        several: Any = BatchedStage(stage, texts)
        several.given = list[SessionCache]()
        made.append((several, stage))
        return several, stage

    yield load
    for texts, stage in made:
        texts.close()
        for caches in texts.given:
            caches.stage.close()
        stage.close()


def rows_for(stage: Stage, count: int, seed: int) -> Any:
    """Returns random input rows of a stage: ids, or hidden states if the stage has no embedding."""
    rng = np.random.default_rng(seed)
    if stage.part.embed:
        return rng.integers(0, stage.config.vocab_size, count).tolist()
    return rng.standard_normal((count, stage.config.n_embd)).astype(np.float32)


def bits(answer: Any, head: bool) -> Any:
    assert isinstance(answer, Answer), answer
    return (answer.logits if head else answer.hidden[-1]).tobytes()


class Alone:
    """Runs the input rows of a text in a separate session."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage.session()

    def feed(self, pos: int, x: Any, ask: Ask | None) -> Answer:
        return self.stage.answer(pos, x, ask)


@pytest.mark.slow
@pytest.mark.parametrize("which", PARTS)
def test_each_text_gets_the_bits_that_it_gets_alone(folder: Path, which: str, together: Any) -> None:
    """Runs prompts, varying batches, rollback and guesses. Fails if other texts or stale cache rows change a text."""
    texts, stage = together(folder, which)
    head = stage.part.head
    rng, alone = np.random.default_rng(1), [Alone(stage) for _ in range(8)]
    caches: list[SessionCache] = texts.given
    caches += [texts.caches() for _ in alone]
    held = [0] * 8
    most = stage.config.n_positions
    try:
        for i in range(8):
            x = rows_for(stage, 1 + i % 3, i)
            wanted = alone[i].feed(0, x, LOGITS)
            assert bits(texts.answer(StepInput(caches[i], 0, x, LOGITS)), head) == bits(wanted, head)
            held[i] = len(x)
        for turn in range(14):
            chosen = [int(i) for i in rng.permutation(8)[: 1 + turn % 8] if held[i] + 9 < most]
            pos = {i: max(0, held[i] - int(rng.integers(0, 3)) * (turn % 3 == 0)) for i in chosen}
            x = {i: rows_for(stage, 1, 100 * turn + i) for i in chosen}
            found = texts.answers([StepInput(caches[i], pos[i], x[i], LOGITS) for i in chosen])
            for i, answer in zip(chosen, found, strict=True):
                assert bits(answer, head) == bits(alone[i].feed(pos[i], x[i], LOGITS), head), (turn, i)
                held[i] = pos[i] + 1
            if turn % 4 == 3 and held[0] + 9 < most:  # guesses need the session's own caches again
                guesses = rows_for(stage, 3, turn)
                wanted = alone[0].feed(held[0], guesses, LOGITS)
                assert bits(texts.answer(StepInput(caches[0], held[0], guesses, LOGITS)), head) == bits(wanted, head)
                held[0] += 3
        assert texts.passes > 5
    finally:
        for one in alone:
            one.stage.close()


def test_drawn_tokens_and_alternatives_are_those_of_one_text(folder: Path, together: Any) -> None:
    texts, stage = together(folder, "whole")
    texts.given += [texts.caches() for _ in range(3)]
    alone = stage.session()
    asks = [
        Ask(temperature=0.9, seed=4, draw=1, alternatives=3),
        Ask(temperature=1.0, top_p=0.9, seed=5, draw=1),
        Ask(alternatives=2),
    ]
    prompts = [rows_for(stage, 3, i) for i in range(3)]
    for caches, prompt in zip(texts.given, prompts, strict=True):
        texts.answer(StepInput(caches, 0, prompt, None))
    tokens = [rows_for(stage, 1, 9 + i) for i in range(3)]
    steps = [StepInput(c, 3, x, ask) for c, x, ask in zip(texts.given, tokens, asks, strict=True)]
    found = texts.answers(steps)
    for prompt, x, ask, answer in zip(prompts, tokens, asks, found, strict=True):
        alone.answer(0, prompt, None)
        wanted = alone.answer(3, x, ask)
        assert (answer.tokens, answer.top) == (wanted.tokens, wanted.top) and answer.tokens
    alone.close()


def test_rows_that_others_need_go_back_to_their_own_caches(
    folder: Path, together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchedStage, "rows", property(lambda self: 1))  # `height` rounds this 1 up to 256
    texts, stage = together(folder, "back")
    n = min(40, stage.config.n_positions - 3)
    texts.given += [texts.caches() for _ in range(2 * (256 // (2 * n)) + 2)]
    alone = [Alone(stage) for _ in texts.given]
    try:
        for i, caches in enumerate(texts.given):
            x = rows_for(stage, n, i)
            texts.answer(StepInput(caches, 0, x, None))
            alone[i].feed(0, x, None)
        for turn in range(2):
            for first in range(0, len(alone), 2):
                pair = (first, first + 1)
                rows = {i: rows_for(stage, 1, 10 * turn + i) for i in pair}
                found = texts.answers([StepInput(texts.given[i], n + turn, rows[i], LOGITS) for i in pair])
                for i, answer in zip(pair, found, strict=True):
                    assert bits(answer, True) == bits(alone[i].feed(n + turn, rows[i], LOGITS), True)
        assert any(caches.own > n for caches in texts.given), "no text was evicted from the shared caches"
    finally:
        for one in alone:
            one.stage.close()


def test_without_memory_for_shared_caches_texts_take_turns(goldens: Path, together: Any) -> None:
    texts, stage = together(goldens / "dhead2-gelu", "back")
    texts.most = stage.texture_bytes + 1000
    texts.given += [texts.caches() for _ in range(2)]
    rows = [rows_for(stage, 1, i) for i in range(2)]
    found = texts.answers([StepInput(c, 0, x, LOGITS) for c, x in zip(texts.given, rows, strict=True)])
    one = Alone(stage)
    for x, answer in zip(rows, found, strict=True):
        assert bits(answer, True) == bits(one.feed(0, x, LOGITS), True)
    one.stage.close()
    assert texts.nbytes == 0 and texts.passes == 0


def test_turns_keep_their_order_and_jobs_that_wait_run_together() -> None:
    """Fails if a session is twice in a batch, a batch is too long, or an error affects other jobs."""
    gate, ran = threading.Event(), list[Any]()

    def run(jobs: Any) -> list[Any]:
        ran.append(tuple(jobs))
        return [GlgptError("bad") if job == "b2" else job.upper() for job in jobs]

    turns: BatchingExecutor[str] = BatchingExecutor("test", run, lambda: 3)
    try:
        first = turns.submit(gate.wait)
        jobs = {name: turns._add(_Task(job=name, whose=name[0])) for name in ("a1", "b2", "a3")}
        work = turns.submit(lambda: ran.append("work"))
        jobs |= {name: turns._add(_Task(job=name, whose=name[0])) for name in ("c4", "d5")}
        gate.set()
        for future in (first, work, jobs["d5"], jobs["a3"]):
            future.result(10)
        assert ran == [("a1", "b2", "c4"), ("a3", "d5"), "work"]
        assert jobs["a1"].result() == "A1" and isinstance(jobs["b2"].exception(), GlgptError)
    finally:
        turns.close()
    with pytest.raises(RuntimeError):
        turns.submit(gate.wait)


def test_a_run_with_too_few_results_fails_its_jobs_and_not_the_thread() -> None:
    """Regression: the thread ended, and all callers waited forever."""
    turns: BatchingExecutor[str] = BatchingExecutor("test", lambda jobs: ["one"] * (len(jobs) - 1), lambda: 3)
    try:
        assert isinstance(turns._add(_Task(job="a", whose="a")).exception(10), RuntimeError)
        assert turns.submit(lambda: "on").result(10) == "on"
    finally:
        turns.close()


def test_a_server_answers_clients_that_come_together_in_one_pass(goldens: Path, serve: Any) -> None:
    """Fails if, with four clients at once, a text differs from the unsplit model's, or no passes are shared."""
    folder = goldens / "llama-grouped"
    server = serve(folder, "1")
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = [list(model.generate_ids([3, 31, 6 + i], 8, temperature=1, seed=i)) for i in range(4)]
    engine = server.app.engine
    texts = list[Any]([None] * 4)
    slow = threading.Barrier(4)

    def client(i: int) -> None:
        with load(folder, rest=server.url, device="software") as split:
            run = split.generate_ids([3, 31, 6 + i], 8, temperature=1, seed=i)
            texts[i] = []
            for token in run:
                texts[i].append(token)
                slow.wait(30)  # all clients request their next token at once

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert texts == wanted
    assert engine.whole.texts.passes > 2


def test_steps_on_an_unloaded_part_allocate_no_caches(goldens: Path) -> None:
    """Regression: with --max-texture-memory, joint steps on an unloaded part allocated caches that were never freed."""
    engine = Engine(goldens / "llama-grouped", device="software", max_texture_memory=1 << 30)

    def run() -> tuple[int, list[Any]]:
        served = engine.serve("embed,0")
        jobs = [StepRequest(Session(served.texts), Step(seq=0, pos=0, n=1), [3], "f32", 0.0) for _ in range(2)]
        engine._drop(engine._narrowed.pop(served.part))
        before = engine.stage.player.device.texture_bytes
        return before, engine._together(jobs)

    try:
        before, found = engine._turns.submit(run).result()
        assert all(isinstance(error, LapsedError) for error in found)
        assert engine.stage.player.device.texture_bytes == before
    finally:
        engine.close()


def test_a_step_that_fails_beside_others_fails_alone(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if one session's error reaches the rest of its batch, or makes later steps fail."""
    engine = Engine(goldens / "llama-grouped", "1", device="software")
    width = engine.config.n_embd
    try:
        rows = [np.random.default_rng(i).standard_normal((1, width)).astype(np.float32) for i in range(3)]
        bad = Ask.model_construct(**Ask(seed=1).model_dump() | {"temperature": 1e300})  # no message can have this value

        def steps(seq: int, *asks: Ask) -> list[Any]:
            jobs = []
            for session, x, ask in zip(sessions, rows, asks, strict=True):
                jobs.append(
                    StepRequest(session, Step(seq=seq, pos=seq, n=1).model_copy(update={"ask": ask}), x, "f32", 0.0)
                )
            found: list[Any] = engine._turns.submit(lambda: engine._together(jobs)).result()
            return [tuple(decode_answer(x)[0].tokens) if isinstance(x, bytes) else x for x in found]

        good = [Ask(temperature=0.9, seed=i) for i in range(3)]
        sessions = [Session(engine.whole.texts) for _ in rows]
        wanted = [steps(seq, *good) for seq in range(3)]
        passes = engine.whole.texts.passes
        sessions = [Session(engine.whole.texts) for _ in rows]
        assert steps(0, *good) == wanted[0]
        failed = steps(1, good[0], bad, good[2])
        assert (failed[0], failed[2]) == (wanted[1][0], wanted[1][2])
        assert isinstance(failed[1], GlgptError) and "temperature is 1e+300" in str(failed[1])
        assert steps(1, *good) == wanted[1] and steps(2, *good) == wanted[2]
        assert engine.whole.texts.passes >= passes + 3
        sessions = [Session(engine.whole.texts) for _ in rows]
        monkeypatch.setattr(engine.whole.texts, "step", lambda *_: 1 / 0)  # the pass fails, so each step runs alone
        assert steps(0, *good) == wanted[0]
    finally:
        engine.close()
