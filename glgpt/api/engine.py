"""Runs a model in its own thread and continues the texts of all requests side by side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from glgpt import ops
from glgpt.api import metrics
from glgpt.api.choices import Choice, Event
from glgpt.api.tools import CallForm, Tools, for_template
from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.arguments.checks import token_ids
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.batching.batch import SPARE, BatchDecoder
from glgpt.inference.batching.continuations import Continuations, Row
from glgpt.inference.chunks import plan_segments
from glgpt.inference.constraints.constraint import Constraint
from glgpt.inference.generation import StopText
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.text.tokenizer import Tokenizer
from glgpt.text.untrusted.chat_template import ChatPrompt

logger = logging.getLogger(__name__)
CACHED_POSITIONS = 1024  # default number of KV cache positions per text, unless the context is shorter
MAX_RETRY_AFTER_S = 60
USUAL_SECONDS = 2.0  # duration of a request that is assumed at first; `_usual` then averages measured durations


class FullError(Exception):
    """Raised if the queue of waiting texts is full. A place is likely to be free after `retry_after` seconds."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"the queue is full; try again in {retry_after} s")
        self.retry_after = retry_after


class EndedError(GlgptError):
    """Raised if the engine has ended, after `stop`, `close` or a failure."""


@dataclass
class Wanted:
    """A text of at most `tokens` tokens to generate after a prompt. `top` is the same as in `Choice`."""

    prompt: ChatPrompt
    tokens: int
    options: SamplingOptions
    stop: Sequence[str] = ()
    top: int | None = None


@dataclass(eq=False)
class Job:
    """Holds a request's texts and the time of its arrival."""

    choices: list[Choice]
    came: float = field(default_factory=time.perf_counter)
    first: bool = False  # True once a token was generated


class Engine:
    """A model that continues up to `most` texts side by side; up to `queue` further texts wait.

    All work on the GPU happens in one thread. A text equals the result of `LanguageModel.chat` or `generate` for the
    same prompt and seed, whatever other texts run. `cached` is the number of positions in the KV caches of all texts
    together (default: `CACHED_POSITIONS` per text). Raises GlgptError for a model that cannot be loaded or used.
    """

    def __init__(
        self,
        name: str | None,
        most: int = ops.MAX_ROWS,
        queue: int = 64,
        cached: int | None = None,
        **options: Any,
    ) -> None:
        self.most, self.queue, self._cached = most, queue, cached
        self._change = threading.Condition()
        self._new: list[Job] = []
        self._gone: list[Job] = []  # jobs to cancel
        self._jobs: dict[Job, None] = {}
        self._closed = False
        self.failure: EndedError | None = None  # set if the model has failed and could not be started again
        self._usual = USUAL_SECONDS
        self._tokenizing = threading.Lock()  # the process that renders chat templates answers one request at a time
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready, name, options), name="glgpt-api")
        self._thread.start()
        try:
            ready.result()
        except BaseException:  # also KeyboardInterrupt
            self.close()
            raise

    # -- for any thread -----------------------------------------------------------------------------------------

    @property
    def context(self) -> int:
        """Returns the maximum number of tokens of a prompt and its continuation.

        The last token of the continuation does not count, because it is not fed back into the model.
        """
        return self.model.context

    @property
    def waiting(self) -> int:
        """Returns the number of texts that wait for their generation to start."""
        return self._batch.waiting + sum(len(job.choices) for job in self._new)

    def chat_prompt(self, messages: list[dict[str, Any]], tools: Tools | None = None) -> ChatPrompt:
        """Returns the token ids of messages. If a function call is forced, the text that begins a call is appended.

        Raises GlgptError for unusable messages or a missing chat template.
        """
        template = self.model.chat_template
        try:
            written = for_template(messages, tools, template.mentions)
            with self._tokenizing:
                found = template.prompt(written, tools=tools.documents() if tools else None)
        except RecursionError:
            raise ArgumentError("the messages or the tools are nested too deeply; nest them less") from None
        if tools and tools.forced and (start := self.call_form.start):
            return ChatPrompt(found.ids + self.tokenizer.encode(start), found.borders)
        return found

    @property
    def call_form(self) -> CallForm:
        """Returns the form in which the model writes a call."""
        return CallForm.of(self.model.chat_template.mentions)

    def text_prompt(self, prompt: str | Sequence[int]) -> ChatPrompt:
        """Returns the token ids of a text, or given ids after a check. Raises GlgptError for an unusable prompt.

        Checks only the first ids, as many as the context holds: a longer prompt is refused anyway.
        """
        with self._tokenizing:
            ids = self.model.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
            self.model.check_ids(ids[: self.context])
        return ChatPrompt(ids)

    def prepare(self, wanted: Sequence[Wanted], emit: Callable[[Event], None]) -> Job:
        """Returns a job that generates these texts. `emit` receives the job's events, in the thread of the model.

        Raises GlgptError for sampling options that cannot be used, such as a schema that is not supported.
        """
        choices: list[Choice] = []
        for each in wanted:
            like = choices[0].row.sampler if choices else None
            choices.append(self._choice(len(choices), each, self.model.sampler(each.options, like), emit))
        return Job(choices)

    def check_constraint(self, constraint: Constraint) -> None:
        """Raises ConstraintError for a constraint that cannot be used."""
        self.model.sampler(SamplingOptions(constraint=constraint))

    def submit(self, job: Job) -> None:
        """Queues a job. Raises FullError if the queue is full, and EndedError after `stop` or a failure."""
        with self._change:
            if self._closed:
                raise self._reason()
            self._check_room(len(job.choices))
            self._new.append(job)
            self._change.notify_all()

    def check_room(self, texts: int) -> None:
        """Raises FullError if the queue has no place for this many more texts."""
        with self._change:
            self._check_room(texts)

    def _check_room(self, texts: int) -> None:
        if self._batch.active + self.waiting + texts > self.most + self.queue:
            rounds = 1 + self.waiting / self.most
            raise FullError(max(1, min(MAX_RETRY_AFTER_S, round(rounds * self._usual))))

    def cancel(self, job: Job) -> None:
        """Ends a job that its client no longer needs; does nothing if the job has ended."""
        with self._change:
            self._gone.append(job)
            self._change.notify_all()

    @property
    def busy(self) -> bool:
        """True if a job is running or waiting."""
        return bool(self._jobs or self._new)

    def stop(self) -> None:
        """Ends all jobs with `EndedError` and refuses new jobs; does not wait until the jobs have ended."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def close(self) -> None:
        """Ends all jobs and the thread, and releases the model."""
        self.stop()
        self._thread.join()

    def _reason(self) -> EndedError:
        return self.failure or EndedError("the server is shutting down")

    def _choice(self, index: int, wanted: Wanted, sampler: Sampler, emit: Callable[[Event], None]) -> Choice:
        ids, tokens = wanted.prompt.ids, min(wanted.tokens, self.context - len(wanted.prompt.ids) + 1)
        chunks = plan_segments(wanted.prompt.borders, len(ids), self.context, self._decoder.sizes)
        row = Row(list(ids), sampler, tokens, chunks)
        return Choice(index, row, self.tokenizer, StopText(list(wanted.stop)), emit, self.model.eos_ids, wanted.top)

    # -- the model's thread -------------------------------------------------------------------------------------

    def _run(self, ready: Future[None], name: str | None, options: dict[str, Any]) -> None:
        shown = options.pop("progress", None)

        def progress(done: int, total: int) -> None:
            if self._closed:
                raise GlgptError("loading was interrupted")
            if shown:
                shown(done, total)

        try:
            model = load(name, progress=progress, **options)
        except BaseException as error:  # the constructor raises it
            ready.set_exception(error)
            return
        with model:
            try:
                self._start(model)
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(None)
            try:
                while self._step():
                    pass
            except Exception as error:
                logger.error("the model cannot be started again", exc_info=error)
                self._fail(error)

    def _start(self, model: LanguageModel) -> None:
        if model.tokenizer is None:
            raise GlgptError(f"{model.name} has no tokenizer, so it cannot be served; give a folder with a tokenizer")
        if model.decoders is None:
            raise GlgptError(f"{model.name} is split over servers; glgpt api needs the whole model")
        self.model, (self._decoder, self._shared) = model, model.decoders
        self.tokenizer: Tokenizer = model.tokenizer
        rows = self.most * min(model.context, CACHED_POSITIONS) if self._cached is None else self._cached
        self._shared.remedy = "lower --cache-tokens, --parallel or --context"
        self._shared.reserve(max(rows, model.context) + SPARE)
        self._batch = self._continuations(self._shared)

    def _continuations(self, batch: BatchDecoder) -> Continuations:
        return Continuations(batch, (), self.context, self.model.eos_ids, self.most, self.model.speculate)

    def _step(self) -> bool:
        """Ends cancelled jobs, queues the texts of new jobs and takes a step of generation.

        The step starts queued texts, or, if none can start, continues the active texts (`_batch.advance`).
        Returns False if the thread must end.
        """
        with self._change:
            self._change.wait_for(lambda: self._new or self._gone or self._jobs or self._closed)
            new, gone, self._new, self._gone = self._new, self._gone, [], []
            for job in new:
                self._jobs[job] = None
            closed = self._closed
        if closed:
            gone = list(self._jobs)
        for job in gone:
            self._end(job)
        for job in new:
            for choice in job.choices if job in self._jobs else ():
                self._batch.add(choice.row)
        if closed:
            return False
        if self._jobs:
            self._advance()
        metrics.ACTIVE.set(self._batch.active)
        metrics.WAITING.set(self._batch.waiting)
        return True

    def _advance(self) -> None:
        failure: GlgptError | None = None
        try:
            self._batch.advance()
            metrics.STEPS.inc()
        except Exception as error:  # a bug or a lost device: every request receives the error
            logger.error("a step of generation failed", exc_info=error)
            failure = error if isinstance(error, GlgptError) else GlgptError(f"the server failed: {error}")
            for job in self._jobs:
                for choice in job.choices:
                    choice.row.error, choice.row.ended = choice.row.error or failure, True
        for job in list(self._jobs):
            self._report(job)
        if failure:  # after the reports, because `_start` raises an error if the device is lost
            self._shared.close()
            self._decoder.forget()
            self._start(self.model)

    def _fail(self, error: Exception) -> None:
        """Ends all jobs and refuses new jobs, because the model failed and could not be started again."""
        self.failure = EndedError(f"the model failed and could not be started again: {error}; restart the server")
        with self._change:
            self._closed = True
            self._jobs |= dict.fromkeys(self._new)
            self._new = []
        for job in list(self._jobs):
            self._end(job)

    def _report(self, job: Job) -> None:
        """Finishes the texts of a job that have ended. After the last text, removes the job and updates the metrics."""
        if not job.first and any(choice.row.drawn for choice in job.choices):
            job.first = True
            metrics.FIRST_TOKEN_SECONDS.observe(time.perf_counter() - job.came)
        for choice in job.choices:
            choice.row.ready.clear()
            if choice.row.ended:
                choice.finish()
        if all(choice.done for choice in job.choices):
            del self._jobs[job]
            seconds = time.perf_counter() - job.came
            self._usual += (seconds - self._usual) / 8
            metrics.REQUEST_SECONDS.observe(seconds)
            metrics.PROMPT_TOKENS.inc(sum(len(c.row.ids) for c in job.choices))
            metrics.CACHED_TOKENS.inc(sum(c.row.run.cached_tokens for c in job.choices))
            metrics.GENERATED_TOKENS.inc(sum(c.tokens for c in job.choices))

    def _end(self, job: Job) -> None:
        if job in self._jobs:
            del self._jobs[job]
            for choice in job.choices:
                self._batch.cancel(choice.row)
                if not choice.done:
                    choice.row.error = self._reason()
                    choice.finish()


def each_seed(options: SamplingOptions, count: int) -> list[SamplingOptions]:
    """Returns options for `count` texts of one prompt. The seeds are consecutive and begin with the seed of `options`.

    If `options` has no seed, the first seed is random.
    """
    first = options.seeded()
    return [replace(first, seed=((first.seed or 0) + i) % 2**64) for i in range(count)]
