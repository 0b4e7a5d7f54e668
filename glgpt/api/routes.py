"""Answers HTTP requests: completions, the list of models, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from glgpt import __version__
from glgpt.api import metrics
from glgpt.api.access import Access
from glgpt.api.answers import Answer, usage
from glgpt.api.choices import Event
from glgpt.api.engine import EndedError, Engine, FullError, Job, Wanted, each_seed
from glgpt.api.errors import ApiError
from glgpt.api.requests import (
    COMPLETION_TOKENS,
    MAX_CHOICES,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    parsed,
    refused,
)
from glgpt.api.tools import Tools
from glgpt.errors import GlgptError, quoted
from glgpt.inference.constraints.constraint import ConstraintError
from glgpt.page.serve import Headers, Names
from glgpt.text.untrusted.chat_template import ChatPrompt

T = TypeVar("T")
logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 4 << 20
COMMENT_INTERVAL_S = 15.0  # a stream sends a comment after this many seconds of silence, so that proxies keep it open
COMPILERS = 2  # maximum number of constraints that are compiled at the same time
DRAIN_RETRY_S = 5  # seconds after which a client may repeat a request that was refused during the shutdown


class Api:
    """The web application that serves an engine. While `draining` is True, it refuses requests for completions."""

    def __init__(
        self, engine: Engine, key: str | None = None, origins: Collection[str] = (), hosts: Collection[str] = ()
    ) -> None:
        self.engine, self.draining, self.open = engine, False, 0
        self.name = engine.model.name
        self._since = int(time.time())
        # Separate threads, so that constraints that take seconds to compile do not delay other requests.
        self._compilers = ThreadPoolExecutor(COMPILERS, "glgpt-compile")
        self._compiling = 0  # number of texts whose constraints are being compiled or wait to be compiled
        metrics.DRAINING.set_function(lambda: self.draining)
        posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
        }
        gets: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/health": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
        }
        routes = [Route(path, self._counted(path, work), methods=["POST"]) for path, work in posts.items()]
        routes += [Route(path, self._counted(path, work)) for path, work in gets.items()]
        app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
        self.asgi = Headers(Names(Access(app, key, origins), hosts))

    def close(self) -> None:
        """Drops constraints that wait to be compiled."""
        self._compilers.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """True while a request is being answered, waits for the model, or waits for its constraint to be compiled."""
        return bool(self.open or self._compiling or self.engine.busy)

    def _counted(
        self, path: str, work: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns a handler that turns errors into answers, and counts answers."""

        async def answer(request: Request) -> Response:
            try:
                found = await work(request)
            except ApiError as error:
                found = error.response()
            except ClientDisconnect:
                found = Response(status_code=499)
            except Exception as error:  # a bug: the client must receive an answer
                logger.error("a request failed", exc_info=error)
                found = ApiError(500, f"the server failed: {type(error).__name__}").response()
            metrics.REQUESTS.labels(path, found.status_code).inc()
            return found

        return answer

    # -- GET ----------------------------------------------------------------------------------------------------

    async def _health(self, _: Request) -> Response:
        """Answers a health check: 503 while the server shuts down, and after the model has failed for good."""
        status = "failed" if self.engine.failure else "draining" if self.draining else "ok"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    def _about(self) -> dict[str, Any]:
        about = {"id": self.name, "object": "model", "created": self._since, "owned_by": "glgpt"}
        return about | {"max_model_len": self.engine.context}

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self.name:
            raise ApiError(
                404, f"there is no model {quoted(name)}; this server has {self.name}", "model", "model_not_found"
            )
        return JSONResponse(self._about())

    # -- POST ---------------------------------------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response:
        asked = parsed(ChatRequest, await self._body(request))
        messages, tools = asked.plain_messages(), asked.offered()
        try:
            prompt = await asyncio.to_thread(self.engine.chat_prompt, messages, tools)
        except GlgptError as error:
            raise refused(error, "messages") from None
        limit = asked.limit or self.engine.context
        return await self._answer(request, asked, [prompt], limit, asked.top, "messages", tools)

    async def _completions(self, request: Request) -> Response:
        asked = parsed(CompletionRequest, await self._body(request))
        if asked.best_of is not None and asked.best_of != (asked.n or 1):
            raise ApiError(400, "best_of other than n is not supported", "best_of")
        if len(asked.prompts) * (asked.n or 1) > MAX_CHOICES:
            raise ApiError(400, f"a request may ask for {MAX_CHOICES} texts at most", "n")
        try:
            prompts = [await asyncio.to_thread(self.engine.text_prompt, each) for each in asked.prompts]
        except GlgptError as error:
            raise refused(error, "prompt") from None
        return await self._answer(
            request, asked, prompts, asked.max_tokens or COMPLETION_TOKENS, asked.logprobs, "prompt"
        )

    async def _body(self, request: Request) -> bytes:
        """Returns the body.

        Raises ApiError if it is too large or not sent as JSON, or if the server shuts down or has failed.
        """
        if self.engine.failure:
            raise _failure(self.engine.failure)
        if self.draining:
            raise ApiError(503, "the server is shutting down", retry_after=DRAIN_RETRY_S)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise ApiError(415, f"the Content-Type is {quoted(kind or 'missing')}; send application/json")
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(413, f"the body exceeds {MAX_BODY_BYTES >> 20} MiB")
        return bytes(body)

    async def _answer(
        self,
        request: Request,
        asked: GenerationRequest,
        prompts: Sequence[ChatPrompt],
        limit: int,
        top: int | None,
        field: str,
        tools: Tools | None = None,
    ) -> Response:
        for prompt in prompts:
            if len(prompt.ids) > self.engine.context:
                why = f"the prompt has {len(prompt.ids)} tokens and the context holds {self.engine.context}; shorten it"
                raise ApiError(400, why, field, "context_length_exceeded")
        texts, most = len(prompts) * (asked.n or 1), self.engine.most + self.engine.queue
        if texts > most:
            why = f"the request asks for {texts} texts, and this server holds {most} at once; ask for fewer"
            raise ApiError(400, why, "n")
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def emit(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(events.put_nowait, event)

        def prepared() -> Job:
            try:
                model = self.engine.model
                defaults = model.chat_sampling if isinstance(asked, ChatRequest) else {}
                options = each_seed(asked.sampling(model.config.vocab_size, defaults), asked.n or 1)
                if tools and tools.forced:
                    constraint = tools.constraint(self.engine.call_form.key)
                    options = [replace(own, constraint=constraint) for own in options]
                return self.engine.prepare(
                    [Wanted(prompt, limit, own, asked.stops, top) for prompt in prompts for own in options], emit
                )
            except ConstraintError as error:
                if tools and tools.forced:
                    raise tools.unusable(error, self.engine.check_constraint) from None
                raise asked.unusable(error) from None

        compiled = texts if asked.constrained or (tools and tools.forced) else 0
        job = await self._submitted(request, prepared, compiled)
        chat, mark = isinstance(asked, ChatRequest), _fingerprint(self.engine)
        answer = Answer(chat, self.name, self.engine.tokenizer, mark, top is not None, tools)
        if not asked.stream:
            return await self._whole(request, job, events, answer, len(prompts))
        counted = bool(asked.stream_options and asked.stream_options.include_usage)
        pieces = self._pieces(job, events, answer, len(prompts) if counted else 0)
        return StreamingResponse(pieces, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _submitted(self, request: Request, prepared: Callable[[], Job], compiled: int) -> Job:
        """Submits the job that `prepared` returns.

        `compiled` is the number of texts for which `prepared` compiles a constraint; it may be 0. Raises ApiError if
        the queue has too few places; checks this before and after the compilation.
        """
        try:
            if compiled:
                self.engine.check_room(self._compiling + compiled)
            self._compiling += compiled
            try:
                threads = self._compilers if compiled else None
                job = await _while_connected(request, asyncio.get_running_loop().run_in_executor(threads, prepared))
            finally:
                self._compiling -= compiled
            self.engine.submit(job)
        except EndedError as error:
            raise _failure(error) from None
        except GlgptError as error:
            raise refused(error) from None
        except FullError as error:
            raise ApiError(429, str(error), code="queue_full", retry_after=error.retry_after) from None
        return job

    async def _whole(
        self, request: Request, job: Job, events: asyncio.Queue[Event], answer: Answer, prompts: int
    ) -> Response:
        found: defaultdict[int, list[Event]] = defaultdict(list)
        gone = asyncio.ensure_future(_disconnected(request))
        self.open += 1
        try:
            left = len(job.choices)
            while left:
                coming = asyncio.ensure_future(events.get())
                await asyncio.wait({coming, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    raise ClientDisconnect
                event = coming.result()
                if event.error:
                    raise _failure(event.error)
                found[event.index].append(event)
                left -= event.reason is not None
        finally:
            self.open -= 1
            gone.cancel()
            self.engine.cancel(job)
        return JSONResponse(answer.whole(job.choices, found, usage(job.choices, prompts)))

    async def _pieces(self, job: Job, events: asyncio.Queue[Event], answer: Answer, counted: int) -> AsyncIterator[str]:
        """Yields the server-sent events of an answer.

        `counted` is the number of prompts if an event before the final [DONE] must report the usage, else 0.
        """
        self.open += 1
        try:
            if answer.chat:
                for choice in job.choices:
                    yield _sent(answer.begin(choice.index))
            left = len(job.choices)
            while left:
                try:
                    event = await asyncio.wait_for(events.get(), COMMENT_INTERVAL_S)
                except asyncio.TimeoutError:
                    yield ": waiting\n\n"
                    continue
                if event.error:
                    yield _sent(_failure(event.error).body())
                    return
                left -= event.reason is not None
                for piece in answer.pieces(event):
                    yield _sent(piece | ({"usage": None} if counted else {}))
            if counted:
                yield _sent(answer.end(usage(job.choices, counted)))
            yield "data: [DONE]\n\n"
        finally:
            self.open -= 1
            self.engine.cancel(job)


def _sent(piece: dict[str, Any]) -> str:
    return f"data: {json.dumps(piece, ensure_ascii=False)}\n\n"


def _failure(error: GlgptError) -> ApiError:
    status = 400 if isinstance(error, ConstraintError) else 503 if isinstance(error, EndedError) else 500
    return ApiError(status, str(error))


def _fingerprint(engine: Engine) -> str:
    """Returns `system_fingerprint`: the version and the weight format, because the text of a seed depends on both."""
    return f"glgpt-{__version__}-{engine.model.dtype}"


async def _while_connected(request: Request, work: asyncio.Future[T]) -> T:
    """Returns the result of `work`, which runs in a thread. Raises ClientDisconnect if the client disconnects first.

    The result is dropped if the client disconnects or this task is cancelled.
    """
    gone = asyncio.ensure_future(_disconnected(request))
    both: set[asyncio.Future[Any]] = {work, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        gone.cancel()
        work.cancel()  # has no effect if the work has ended


async def _disconnected(request: Request) -> None:
    """Returns once the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    paths = "POST /v1/chat/completions and /v1/completions, GET /v1/models, /health and /metrics"
    return ApiError(
        status, f"{request.method} {quoted(request.url.path)} is not supported; there are {paths}"
    ).response()
