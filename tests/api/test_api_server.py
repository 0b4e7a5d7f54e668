"""Tests the API server with the official client of OpenAI and with hostile requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2 as httpx
import jsonschema
import pytest
from helpers.chat_models import ENDLESS, chat_llama
from starlette.requests import Request

from glgpt.api.choices import Event
from glgpt.api.engine import EndedError, Engine, Wanted
from glgpt.api.errors import ApiError
from glgpt.api.requests import ChatRequest, CompletionRequest
from glgpt.api.routes import Api, _while_connected
from glgpt.api.server import ApiServer
from glgpt.errors import ArgumentError, DeviceError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.constraints import grammar
from glgpt.inference.constraints.constraint import Constraint
from glgpt.inference.model import LanguageModel
from glgpt.system.limited_process import LimitedProcess

if TYPE_CHECKING:
    import openai

HELLO = [{"role": "user", "content": "hello, are you there?"}]
KEY = "a-key-for-tests"
ORIGIN = "https://chat.example.org"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}


DAY: dict[str, Any] = {"enum": ["today", "tomorrow"]}
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "day": {"$ref": "#/$defs/day"}},
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": PLACE | {"required": ["city", "day"], "$defs": {"day": DAY}}},
}
TOOLS = [TOOL, {"type": "function", "function": {"name": "now"}}]
BAD: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}
BAD_CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": "{"}}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file of a llama of random weights."""
    return chat_llama(tmp_path_factory.mktemp("model") / "model.gguf", context=1024)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[Engine]:
    """Yields an engine that computes eight texts at once, and whose queue holds six more."""
    engine = Engine(str(path), queue=6, device="software")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    """Yields the address of a server with a key and an allowed origin."""
    server = ApiServer(0, key=KEY, origins=[ORIGIN])
    thread = threading.Thread(target=server.run, args=(engine,))
    thread.start()
    yield server.url
    server.stop()
    thread.join()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """Yields OpenAI's client."""
    import openai  # takes a second; workers that run none of these tests need not import it

    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def web(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url.removesuffix("/v1"), timeout=60) as web:
        yield web


def chat(client: openai.OpenAI, **how: Any) -> Any:
    return client.chat.completions.create(**{"model": "any", "messages": HELLO, "max_tokens": 12} | how)


@pytest.mark.slow
def test_texts_are_those_of_the_model_alone_whatever_else_runs(client: openai.OpenAI, path: Path) -> None:
    """Fails if texts that join or leave a batch change other texts, or a text differs from that of the model alone."""
    asked: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 5, "top_p": 0.9}, {"seed": 6, "max_tokens": 30}]
    asked += [{"seed": 7, "messages": [{"role": "user", "content": "word " * n}]} for n in range(1, 6)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda how: chat(client, **how), asked))
    plain = client.completions.create(model="any", prompt="hello", max_tokens=9, seed=3)
    with LanguageModel.from_pretrained(path, device="software") as model:
        for how, answer in zip(asked, found, strict=True):
            own = {k: v for k, v in how.items() if k not in ("messages", "max_tokens")}
            run = model.chat(how.get("messages", HELLO), how.get("max_tokens", 12), **own)
            assert answer.choices[0].message.content == run.read()
        assert plain.choices[0].text == model.generate("hello", 9, seed=3).read()
    assert plain.usage and plain.usage.completion_tokens <= 9


@pytest.mark.slow
def test_a_stream_has_the_text_and_usage_of_a_whole_answer(client: openai.OpenAI) -> None:
    whole = chat(client, seed=4, n=3, logprobs=True, top_logprobs=3)
    texts, reasons, logprobs = ["", "", ""], ["", "", ""], [0, 0, 0]
    stream = chat(client, seed=4, n=3, logprobs=True, top_logprobs=3, stream=True, stream_options={"include_usage": 1})
    for piece in stream:
        last = piece.usage
        for choice in piece.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or ""
            logprobs[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
    for i, choice in enumerate(whole.choices):
        assert (texts[i], reasons[i]) == (choice.message.content, choice.finish_reason)
        content = choice.logprobs.content
        assert logprobs[i] == len(content) and sum(logprobs) == whole.usage.completion_tokens
        for token in content:
            assert token.logprob <= 0 and len(token.top_logprobs) == 3
            assert token.top_logprobs[0].logprob >= token.top_logprobs[2].logprob
    assert last.completion_tokens == whole.usage.completion_tokens
    assert last.prompt_tokens_details.cached_tokens > 0  # the request without streaming computed the same prompt


@pytest.mark.slow
def test_a_streamed_answer_validates(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    text = "".join(
        piece.choices[0].delta.content or "" for piece in chat(client, response_format=form, max_tokens=99, stream=True)
    )
    jsonschema.validate(json.loads(text), SCHEMA)
    for more in ({"guided_regex": "[ab]{3}"}, {"structured_outputs": {"regex": "[ab]{3}"}}):
        assert set(chat(client, extra_body=more).choices[0].message.content) <= {"a", "b"}
    more = {"guided_choice": ["yes", "no"]}
    assert {c.message.content for c in chat(client, n=6, extra_body=more).choices} <= {"yes", "no"}


def test_answers_that_outlast_the_shutdown_receive_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: after the drain timeout, streams were cut off, and other answers were "Internal Server Error"."""
    monkeypatch.setattr("glgpt.api.server.DRAIN_TIMEOUT_S", 0.2)
    engine, server = Engine(str(path), device="software"), ApiServer(0)
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(server.run, engine)
        body = {"messages": HELLO, "guided_regex": "[ab]{900}"}
        with httpx.Client(base_url=server.url, timeout=60) as web:
            whole = pool.submit(web.post, "/chat/completions", json=body)
            with web.stream("POST", "/chat/completions", json=body | {"stream": True}) as answer:
                lines = answer.iter_lines()
                while '"content": "a' not in (line := next(lines)) and '"content": "b' not in line:
                    pass
                own = server._server
                assert own
                own.servers[0].get_loop().call_soon_threadsafe(own.handle_exit, signal.SIGTERM, None)
                last = [line for line in lines if line][-1]
            refusal = whole.result()
        running.result()
    engine.close()
    assert json.loads(last.removeprefix("data: ")) == refusal.json() and refusal.status_code == 503
    assert refusal.json()["error"]["message"] == "the server is shutting down"
    assert "when the running answers have ended, in 0.2 s at the latest; interrupt it again" in caplog.text


def test_more_texts_than_the_server_holds_are_refused_for_good(web: httpx.Client) -> None:
    """Regression: the server answered that the queue was full, and that the client should try again later."""
    body = {"prompt": "hello", "max_tokens": 1, "n": 15}
    for more in ({}, {"guided_choice": ["yes", "no"]}):
        answer = web.post("/v1/completions", json=body | more, headers={"Authorization": f"Bearer {KEY}"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "n") and "holds 14 at once" in error["message"]


def test_stop_texts_end_an_answer(client: openai.OpenAI) -> None:
    more = {"guided_regex": "one;two;three"}
    answer = chat(client, extra_body=more, stop=["two"], max_tokens=20).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("one;", "stop")
    answer = chat(client, extra_body=more, max_tokens=5).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("one;t", "length")


@pytest.mark.slow
def test_a_forced_call_has_arguments_of_its_schema(client: openai.OpenAI) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, seeds in ((named, 2), ("required", 3)):
        whole = chat(client, tools=TOOLS, tool_choice=choice, n=seeds, seed=1, max_tokens=90, logprobs=True)
        stream = chat(
            client, tools=TOOLS, tool_choice=choice, n=seeds, seed=1, max_tokens=90, logprobs=True, stream=True
        )
        ids, streamed, reasons, chances = {}, [""] * seeds, [""] * seeds, [0] * seeds
        for piece in stream:
            for each in piece.choices:
                assert not each.delta.content
                reasons[each.index] = each.finish_reason or ""
                chances[each.index] += len(each.logprobs.content) if each.logprobs else 0
                for call in each.delta.tool_calls or ():
                    if call.id:
                        ids[each.index] = (call.id, call.function.name)
                    streamed[each.index] += call.function.arguments
        for i, answer in enumerate(whole.choices):
            (call,) = answer.message.tool_calls
            assert answer.message.content is None and answer.finish_reason == reasons[i] == "tool_calls"
            assert (ids[i][1], streamed[i]) == (call.function.name, call.function.arguments)
            assert chances[i] == len(answer.logprobs.content)
            found = json.loads(call.function.arguments)
            own = TOOL["function"] if call.function.name == "weather" else {"parameters": {"maxProperties": 0}}
            jsonschema.validate(found, own["parameters"])


def test_tools_and_their_results_reach_the_model(client: openai.OpenAI, engine: Engine) -> None:
    """Fails if a prompt lacks the tools because the model's template does not use them, or a plain answer is a call."""
    results = [{"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "12:30"}]}]
    history = [{"role": "system", "content": "be brief"}, *HELLO, CALLED, *results]
    request = ChatRequest.model_validate({"messages": history, "tools": TOOLS})
    ids = engine.chat_prompt(request.plain_messages(), request.offered()).ids
    text = engine.tokenizer.decode(ids)
    parts = ["be brief", '"name": "weather"', '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>']
    places = [text.index(part) for part in [*parts, "<tool_response>\n12:30\n</tool_response>"]]
    assert places == sorted(places)
    request = ChatRequest.model_validate({"messages": HELLO, "tools": TOOLS, "tool_choice": "none"})
    assert engine.chat_prompt(request.plain_messages(), request.offered()).ids == engine.chat_prompt(HELLO).ids
    plain = chat(client, tools=TOOLS, seed=1).choices[0]
    assert plain.message.tool_calls is None and plain.message.content
    written = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    called = chat(client, tools=TOOLS, extra_body={"guided_choice": [written]}, max_tokens=90).choices[0]
    assert called.message.tool_calls[0].function.name == "now" and called.finish_reason == "tool_calls"


# Levels of nested lists that this Python's json can read, but that are too deep for a template
TOO_DEEP = {(3, 10): 600, (3, 11): 600, (3, 12): 1200}.get(sys.version_info[:2], 3000)


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def test_errors_have_openais_form(client: openai.OpenAI, web: httpx.Client) -> None:
    import openai

    def form(schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}

    broken = {"type": "function", "function": {"name": "broken", "parameters": BAD}}
    wrong: dict[str, tuple[dict[str, Any], str | None]] = {
        "at most|list of messages": ({"messages": []}, "messages"),
        "it must be at least 0": ({"temperature": -1}, "temperature"),
        "not a field": ({"extra_body": {"beams": 3}}, "beams"),
        "not supported": ({"frequency_penalty": 1}, "frequency_penalty"),
        "reads text only": (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages",
        ),
        "tool_choice needs tools": ({"tool_choice": "required"}, "tool_choice"),
        "which is not in tools": ({"tools": TOOLS, "tool_choice": {**TOOL, "function": {"name": "f"}}}, "tool_choice"),
        'it must be "none"': ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        "two functions": ({"tools": [TOOL, TOOL]}, "tools"),
        "it must be a string that matches": (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools.0.function.name",
        ),
        "a JSON object": ({"messages": [*HELLO, CALLED | {"tool_calls": [BAD_CALL]}]}, "messages"),
        "cannot be used": ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
        "reply: the JSON schema cannot": ({"response_format": form(BAD)}, "response_format"),
        "the function broken: the JSON schema cannot": (
            {"tools": [TOOL, broken], "tool_choice": "required"},
            "tools.1.function.parameters",
        ),
        "the function broken: the JSON": (
            {"tools": [TOOL, broken], "tool_choice": broken},
            "tools.1.function.parameters",
        ),
        "lacks json_schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
        "nested too deeply": ({"messages": [HELLO[0] | {"name": nested(TOO_DEEP)}]}, "messages"),
        "context holds 1024": ({"messages": [{"role": "user", "content": "word " * 1200}]}, "messages"),
    }
    for said, (how, param) in wrong.items():
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **how)
        assert any(part in str(caught.value) for part in said.split("|")), caught.value
        assert caught.value.param == param and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="the context holds 1024") as caught:
        client.completions.create(model="any", prompt=[5] * 1100)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    head = {"Authorization": f"Bearer {KEY}"}
    post = "/v1/chat/completions"
    assert web.post(post, content=b"{", headers=head | {"Content-Type": "application/json"}).status_code == 400
    assert web.post(post, content=b"[" * 99999, headers=head | {"Content-Type": "application/json"}).status_code == 400
    assert web.post(post, content=b"{}", headers=head | {"Content-Type": "text/plain"}).status_code == 415
    big = b" " * (5 << 20)
    assert web.post(post, content=big, headers=head | {"Content-Type": "application/json"}).status_code == 413
    assert web.get("/v1/nothing", headers=head).json()["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.models.retrieve("other")
    assert client.models.list().data[0].id == client.models.retrieve("model.gguf").id


@pytest.mark.soak
@pytest.mark.slow
def test_no_value_of_a_field_fails_the_server(web: httpx.Client) -> None:
    """Fails if a wrong type or an extreme value gives status 500, or an error without the field's name."""
    values = [None, [], {}, "x", -1, 10**400, 1e300, [None], {"1": 1e300}]
    message: list[Any] = [3, [], {}, [3], {"a": None}, [{"type": "text", "text": 3}]]
    asked: list[dict[str, Any]] = [{field: value} for field in ChatRequest.model_fields for value in values]
    fields = ("role", "content", "tool_calls", "tool_call_id", "name")
    asked += [{"messages": [HELLO[0] | {field: value}]} for field in fields for value in message]
    own = CompletionRequest.model_fields.keys() - ChatRequest.model_fields.keys() | {"logprobs"}
    asked += [
        {"prompt": "a", field: value} for field in sorted(own) for value in [*values, [[]], [-1], [1e9], ["", "a"]]
    ]
    for each in asked:
        path = "/v1/completions" if "prompt" in each else "/v1/chat/completions"
        limit = {"guided_choice": ["a"]} if "max" in [*each][-1] else {"max_tokens": 1}
        body = ({} if "prompt" in each else {"messages": HELLO}) | limit | each
        head = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        found = web.post(path, content=json.dumps(body), headers=head)
        assert found.status_code in (200, 400), (each, found.text)
        if found.status_code == 400:
            error = found.json()["error"]
            assert error["param"].startswith([*each][-1]) and error["message"].isprintable(), (each, error)
            assert len(error["message"]) < 500


def test_only_clients_with_the_key_and_listed_pages_are_answered(url: str, web: httpx.Client) -> None:
    """Fails if a page of another site, or a program without the key, can use the model."""
    assert web.get("/health").json() == {"status": "ok"}
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
        found = web.get("/v1/models", headers=header)
        assert found.status_code == 401 and found.json()["error"]["code"] == "invalid_api_key"
    head = {"Authorization": f"Bearer {KEY}"}
    assert web.get("/v1/models", headers=head).status_code == 200
    assert "glgpt_api_requests_total" in web.get("/metrics", headers=head).text
    found = web.get("/v1/models", headers=head | {"Origin": ORIGIN})
    assert found.headers["access-control-allow-origin"] == ORIGIN
    ask = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    assert web.options("/v1/chat/completions", headers=ask).status_code == 200
    for origin in ("https://evil.example", "null", "http://localhost:3000"):
        assert web.get("/v1/models", headers=head | {"Origin": origin}).status_code == 403
        assert web.get("/health", headers={"Origin": origin}).status_code == 403
    assert web.get("/health", headers={"Host": "evil.example"}).status_code == 421
    with pytest.raises(ArgumentError, match="--api-key-file"):
        ApiServer(0, "0.0.0.0")


def test_a_constraint_that_takes_long_holds_up_no_other_request(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if constraints occupy all threads, or the server waits for clients that have left."""
    import openai

    class Hurried(LimitedProcess):
        timeout_s = 4.0

    monkeypatch.setattr(grammar, "_checks", grammar._Checks())
    monkeypatch.setattr(grammar, "LimitedProcess", Hurried)
    endless = {"type": "json_schema", "json_schema": {"name": "endless", "schema": ENDLESS}}

    def ask(timeout: float) -> Exception:
        with pytest.raises(openai.OpenAIError) as caught:
            chat(client, response_format=endless, timeout=timeout)
        return caught.value

    with ThreadPoolExecutor(12) as pool:
        patient = pool.submit(ask, 60)
        leaving = [pool.submit(ask, 0.5) for _ in range(11)]
        assert chat(client, max_tokens=2).choices and not patient.done()
        assert isinstance(refused := patient.result(), openai.BadRequestError)
        assert refused.param == "response_format" and "takes more than" in str(refused)
        assert all(isinstance(each.result(), openai.APITimeoutError) for each in leaving)
    monkeypatch.setattr(grammar, "LimitedProcess", LimitedProcess)
    began = time.perf_counter()
    assert chat(client, extra_body={"guided_choice": ["yes"]}).choices[0].message.content == "yes"
    assert time.perf_counter() - began < 15  # waiting requests of clients that left were dropped


def test_constraints_that_wait_to_be_compiled_count_as_places(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if constraints queue without limit, or a constraint is compiled once for each text of a request."""
    import openai

    compiled: list[Constraint] = []
    begin = threading.Event()

    def check(constraint: Constraint) -> None:
        compiled.append(constraint)
        assert begin.wait(60)

    monkeypatch.setattr("glgpt.inference.constraints.matcher.check_grammar", check)
    choice = {"extra_body": {"guided_choice": ["yes"]}}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(chat, client, n=8, seed=3, **choice)
        while not compiled:
            time.sleep(0.01)
        with pytest.raises(openai.RateLimitError):
            chat(client, n=7, **choice)
        assert chat(client, n=7, max_tokens=1).choices  # without a constraint
        begin.set()
        assert {each.message.content for each in first.result().choices} == {"yes"}
    assert len(compiled) == 1


def test_answers_are_sampled_as_the_model_recommends(
    client: openai.OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a chat ignores the sampling settings that a model recommends for chats, or a completion uses them."""
    monkeypatch.setattr(engine.model, "chat_sampling", {"temperature": 0.0}, raising=False)
    greedy = chat(client, temperature=0).choices[0].message.content
    assert {chat(client, seed=seed).choices[0].message.content for seed in (1, 2)} == {greedy}
    completed = [client.completions.create(model="any", prompt="hello", seed=seed, max_tokens=12) for seed in (1, 2)]
    assert completed[0].choices[0].text != completed[1].choices[0].text


def test_a_full_queue_and_a_client_that_leaves(client: openai.OpenAI, engine: Engine, url: str) -> None:
    """Fails if requests pile up without limit, or the text of a disconnected client continues."""
    import openai

    port = urlsplit(url).port
    body = json.dumps({"messages": HELLO, "n": 8, "max_tokens": 400, "logit_bias": {}, "guided_regex": "[ab]{399}"})
    with socket.create_connection(("127.0.0.1", port)) as leaver:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        leaver.sendall((head + body).encode())
        while not engine._batch.active:
            pass
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client, n=7)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert len(chat(client, n=2, max_tokens=1).choices) == 2 if engine._batch.active < 8 else True
    while engine.busy:
        pass
    assert chat(client, max_tokens=2).usage.completion_tokens <= 2


def test_work_of_a_cancelled_request_is_dropped() -> None:
    """Fails if a constraint still waits to be compiled after its request was cancelled."""

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def cancelled() -> bool:
        work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(_while_connected(Request({"type": "http"}, receive), work))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return work.cancelled()

    assert asyncio.run(cancelled())


def test_the_server_does_not_end_while_a_constraint_is_compiled(engine: Engine) -> None:
    """Fails if the first signal ends the server while it compiles the constraint of a request."""
    while engine.busy:
        time.sleep(0.01)
    api, begin = Api(engine, None, (), ()), threading.Event()

    async def receive() -> Any:
        await asyncio.sleep(60)

    def prepared() -> Any:
        assert begin.wait(60)
        raise ArgumentError("the constraint cannot be used")

    async def compiling() -> tuple[bool, bool]:
        task = asyncio.ensure_future(api._submitted(Request({"type": "http"}, receive), prepared, 1))
        await asyncio.sleep(0)
        during = api.busy
        begin.set()
        with pytest.raises(ApiError):
            await task
        return during, api.busy

    assert asyncio.run(compiling()) == (True, False)


def test_a_lost_device_ends_all_requests_with_its_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if requests get no answer, or /health returns 200, after the model could not be started again."""

    def lost(*_: object) -> None:
        raise DeviceError("the device is lost")

    engine = Engine(str(path), device="software")
    try:
        events: queue.Queue[Event] = queue.Queue()
        job = engine.prepare([Wanted(engine.text_prompt("a"), 4, SamplingOptions())], events.put)
        monkeypatch.setattr(engine._batch, "advance", lost)
        monkeypatch.setattr(engine._shared, "reserve", lost)
        engine.submit(job)
        assert str(events.get(timeout=60).error) == "the device is lost"
        engine._thread.join(60)
        with pytest.raises(EndedError, match="could not be started again: the device is lost; restart the server"):
            engine.submit(job)
        health = asyncio.run(Api(engine)._health(Request({"type": "http"})))
        assert not engine.busy and (health.status_code, health.body) == (503, b'{"status":"failed"}')
    finally:
        engine.close()
