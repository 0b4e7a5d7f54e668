"""Tests the split server: refusals, sessions, rollback, repeats, evictions, restarts, and broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.split_proxies import Cutting, Delaying, Shuffling

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.split import limits, protocol
from glgpt.split.engine import Engine, StepRequest
from glgpt.split.server import Access, StageServer
from glgpt.wire import hidden, messages
from glgpt.wire.client import Connection
from glgpt.wire.messages import Ask, Look, Open, Step

NAME = "llama-grouped"
TOKENS = 8


@pytest.fixture
def folder(goldens: Path) -> Path:
    return goldens / NAME


@pytest.fixture
def ids(folder: Path) -> list[int]:
    with np.load(folder / "reference.npz") as file:
        return [int(i) for i in file["tokens"]][:6]


@pytest.fixture
def whole(folder: Path, ids: list[int]) -> dict[str, list[int]]:
    """Returns the unsplit model's continuations."""
    with LanguageModel.from_pretrained(folder, device="software") as model:
        return {
            "greedy": list(model.generate_ids(ids, TOKENS, temperature=0)),
            "drawn": list(model.generate_ids(ids, TOKENS, temperature=1, seed=3)),
        }


def message_of(fields: dict[str, Any], payload: bytes = b"") -> bytes:
    """Returns a message of the protocol, encoded without validation."""
    text = json.dumps(fields).encode()
    return struct.pack("<I", len(text)) + text + payload


def fields_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the JSON and the payload of a message."""
    end = 4 + struct.unpack_from("<I", data)[0]
    return json.loads(data[4:end]), data[end:]


BAD_ASKS: list[dict[str, Any]] = [
    *({"temperature": x} for x in (-1, 1e38, 1e300, 1e999, float("nan"), "1", None, 10**400)),
    *({"top_p": x} for x in (0, 1.1, float("nan"))),
    *({"min_p": x} for x in (-0.1, 1.1, float("nan"))),
    *({"top_k": x} for x in (0, 2**31, 1.5)),
    *({"draw": x} for x in (-1, 2**31 - 1, 2**31)),
    *({"seed": x} for x in (-1, 2**64)),
    {"alternatives": 33},
    {"guesses": [2**31]},
]


class Raw:
    """Connects to a server as a client and sends the messages that a test chooses."""

    def __init__(self, url: str, **options: Any) -> None:
        from websockets.sync.client import connect

        self.stack = contextlib.ExitStack()
        self.socket = self.stack.enter_context(connect(url, compression=None, proxy=None, max_size=None, **options))

    def say(self, message: Any, payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        self.socket.send(messages.encode(message, payload) if not isinstance(message, (bytes, str)) else message)
        return fields_of(self.socket.recv(timeout=20))

    def open(self, **fields: Any) -> dict[str, Any]:
        return self.say(Open(protocol=messages.PROTOCOL, **fields))[0]


@pytest.fixture
def raw() -> Iterator[Any]:
    made: list[Raw] = []

    def connect(server: StageServer, **options: Any) -> Raw:
        made.append(Raw(server.url, **options))
        return made[-1]

    yield connect
    for client in made:
        client.stack.close()


def states(n: int, width: int, seed: int = 0) -> bytes:
    return hidden.pack(np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32), "f32")


def test_what_is_no_message_is_refused_and_the_server_goes_on(serve: Any, folder: Path, raw: Any) -> None:
    server = serve(folder, "1")
    width = Checkpoint.open(folder).config.n_embd
    good = Open(protocol=messages.PROTOCOL)
    for first in (b"", b"\xff" * 64, b"\x02\0\0\0[]", message_of({"op": "open"}), Step(seq=0, pos=0, n=1)):
        header, _ = raw(server).say(first)
        assert header["op"] == "error" and header["code"] in ("bad", "unsuitable"), first
    nan = np.full((1, width), np.nan, "<f4").tobytes()
    for message, payload in (
        (b"\0", b""),
        (good, b""),
        (Step(seq=0, pos=0, n=1), b""),
        (Step(seq=0, pos=0, n=1), nan),
        (Step(seq=0, pos=0, n=2), states(1, width)),
        (Step(seq=0, pos=0, n=10**6), states(1, width)),
        (Step(seq=0, pos=10**6, n=1), states(1, width)),
        (Step(seq=0, pos=0, n=1, ask=Ask(guesses=(1, 2))), states(1, width)),
        (Look(seq=0, n=1, names=("embed",)), states(1, width)),
        (Look(seq=0, n=1, names=("nonsense",)), states(1, width)),
        *((message_of({"op": "step", "seq": 0, "pos": 0, "n": 1, "ask": ask}), states(1, width)) for ask in BAD_ASKS),
        (message_of({"op": "step", "seq": 2**30 + 1, "pos": 0, "n": 1}), states(1, width)),
        (message_of({"op": "step", "seq": 0, "pos": 0, "n": 1, "more": 1}), b""),
    ):
        client = raw(server)
        assert client.open()["op"] == "opened"
        header, _ = client.say(message, payload)
        assert (header["op"], header["code"]) == ("error", "bad"), (message, header)
        assert "failed" not in header["message"], header
    client = raw(server)
    client.open()
    assert client.say(Step(seq=0, pos=0, n=1, ask=Ask()), states(1, width))[0]["tokens"]


def test_too_long_a_message_ends_the_connection_alone(serve: Any, folder: Path, raw: Any) -> None:
    from websockets.exceptions import ConnectionClosed

    server = serve(folder, "1")
    client = raw(server)
    client.open()
    with pytest.raises(ConnectionClosed):
        client.socket.send(bytes(server.app.engine.most_bytes + 1))
        client.socket.recv(timeout=20)
    assert raw(server).open()["op"] == "opened"


def test_who_may_connect(serve: Any, folder: Path, raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    from websockets.exceptions import InvalidStatus

    server = serve(folder, "1", token="right")
    for wrong in (None, "wrong"):
        assert raw(server).open(token=wrong)["code"] == "token"
    assert raw(server).open(token="right")["op"] == "opened"
    for origin in ("http://localhost:8042", "https://example.org", "null", "http://["):
        if origin.startswith("http://localhost"):
            raw(server, origin=origin)
        else:
            with pytest.raises(InvalidStatus, match="403"):
                raw(server, origin=origin)
    named = serve(folder, "1", origins=("https://example.org",))
    raw(named, origin="https://example.org")
    with pytest.raises(InvalidStatus, match="403"), caplog.at_level(logging.INFO, "glgpt.split"):
        raw(named, origin="http://localhost:8042")
    why = "pages of http://localhost:8042 may not connect (--origin)"
    assert caplog.records[-1].fields["why"] == why  # type: ignore[attr-defined]
    with pytest.raises(GlgptError, match="token is required"):
        load(folder, rest=server.url, device="software")
    with pytest.raises(ArgumentError, match="--token"):
        StageServer(server.app.engine, Access(), "0.0.0.0", 0)


def test_a_full_server_says_so_and_is_tried_again(serve: Any, folder: Path, raw: Any, ids: list[int]) -> None:
    server = serve(folder, "1")
    with load(folder, rest=server.url, device="software") as split:
        expected = list(split.generate_ids(ids, 2, temperature=0))
        server.app.connections.most = 1
        assert raw(server).open()["code"] == "full"
        with pytest.raises(GlgptError, match=r"is full: it has 1 connections; try again later"):
            Connection(server.url)
        split._connections[0]._disconnect()
        while server.app.connections:
            time.sleep(0.01)
        first = raw(server)
        first.open()
        threading.Timer(0.5, first.stack.close).start()
        assert list(split.generate_ids(ids, 2, temperature=0)) == expected


def test_openings_beyond_what_may_wait_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def run() -> list[bool]:
        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        monkeypatch.setattr("glgpt.split.limits.asyncio.sleep", sleep)
        monkeypatch.setattr("glgpt.split.limits.time.monotonic", lambda: 7.0)
        rates = limits.Rates()
        taken = [await rates.take("a") for _ in range(int(3 * limits.OPENS_AT_ONCE))]
        assert await rates.take("b"), "one client uses up another client's openings"
        for i in range(2 * limits.MAX_CLIENTS):
            await rates.take(str(i))
        assert len(rates._left) == limits.MAX_CLIENTS
        return taken

    taken = asyncio.run(run())
    assert sum(taken) == 2 * limits.OPENS_AT_ONCE and taken == sorted(taken, reverse=True)
    assert len(waited) == limits.OPENS_AT_ONCE and max(waited) == limits.OPENS_AT_ONCE / limits.OPENS_PER_S


@pytest.mark.parametrize("wire, bound", [("f16", 1e-2), ("int8", 0.3)])
def test_narrower_hidden_states_cost_fewer_bytes_and_some_precision(
    serve: Any, folder: Path, ids: list[int], wire: str, bound: float
) -> None:
    server = serve(folder, "1")
    with (
        LanguageModel.from_pretrained(folder, device="software") as whole,
        load(folder, rest=server.url, wire=wire, device="software") as split,
        load(folder, rest=server.url, device="software") as exact,
    ):
        expected = whole.logits(ids)
        assert (exact.logits(ids) == expected).all()
        apart = np.abs(split.logits(ids) - expected).max()
        assert 0 < apart < bound * np.abs(expected).max()
        for model in (split, exact):
            assert len(list(model.generate_ids(ids, 4, temperature=0, seed=7))) == 4
        narrow, full = (model.traffic()[1]["sent"] for model in (split, exact))
        rows, width = 2 * len(ids) + 3, whole.config.n_embd  # rows sent for the logits, and for the generation
        saved = hidden.nbytes(rows, width, "f32") - hidden.nbytes(rows, width, wire)
        assert full - narrow == saved - len(f',"wire":"{wire}"')  # the first message names the format


def test_a_text_over_tls(
    folder: Path, ids: list[int], whole: dict[str, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a trusted certificate does not work, or the error for an untrusted one does not name the certificate."""
    from helpers.split_serving import running

    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = [*new.split(), "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    engine = Engine(folder, "1", device="software")
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        files = [str(certificate), str(key)]
        server = stack.enter_context(running(StageServer(engine, port=0, certificate=files)))
        assert server.url.startswith("wss://")
        with pytest.raises(GlgptError, match="certificate"):
            load(folder, rest=server.url, device="software")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with load(folder, rest=server.url, device="software") as split:
            assert list(split.generate_ids(ids, TOKENS, temperature=0)) == whole["greedy"]


def test_another_model_is_refused(serve: Any, goldens: Path, raw: Any) -> None:
    server = serve(goldens / NAME, "1")
    assert raw(server).open(model="0" * 32)["code"] == "unsuitable"
    with pytest.raises(GlgptError, match="another model"):
        load(goldens / "dhead3-relu", rest=server.url, device="software")


def test_a_repeat_is_answered_as_before_and_a_lower_position_takes_rows_back(
    serve: Any, folder: Path, raw: Any
) -> None:
    server = serve(folder, "1")
    width = server.app.engine.config.n_embd
    client = raw(server)
    key = client.open()["session"]
    first = client.say(Step(seq=0, pos=0, n=3, ask=Ask(logits=True)), states(3, width))
    assert client.say(Step(seq=0, pos=0, n=3, ask=Ask(logits=True)), states(3, width)) == first
    second = client.say(Step(seq=1, pos=3, n=1, ask=Ask(logits=True)), states(1, width, 1))
    other = client.say(Step(seq=2, pos=3, n=1, ask=Ask(logits=True)), states(1, width, 2))
    again = client.say(Step(seq=3, pos=3, n=1, ask=Ask(logits=True)), states(1, width, 1))
    assert again[1] == second[1] != other[1]
    resumed = raw(server).open(session=key)
    assert (resumed["session"], resumed["held"], resumed["seq"]) == (key, 4, 3)
    assert raw(server).open(session="guessed")["session"] not in ("guessed", key)


def test_no_rows_are_read_that_the_session_did_not_write(serve: Any, folder: Path, raw: Any) -> None:
    """Fails if a session can read rows that an ended session has left in its caches."""
    server = serve(folder, "1", sessions=1)
    width = server.app.engine.config.n_embd
    first = raw(server)
    first.open()
    first.say(Step(seq=0, pos=0, n=5), states(5, width))
    thief = raw(server)
    thief.open()
    assert thief.say(Step(seq=0, pos=4, n=1, ask=Ask(logits=True)), states(1, width))[0]["code"] == "order"
    assert first.say(Step(seq=5, pos=5, n=1), states(1, width))[0]["code"] == "order"


def test_the_least_recently_used_session_is_evicted_and_its_text_goes_on(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]]
) -> None:
    server = serve(folder, "1", sessions=1)
    with contextlib.ExitStack() as stack:
        models = [stack.enter_context(load(folder, rest=server.url, device="software")) for _ in range(2)]
        runs = [m.generate_ids(ids, TOKENS, temperature=1, seed=3) for m in models]
        texts = list(zip(*runs, strict=True))  # the two texts alternate, and each evicts the other
        assert [list(t) for t in zip(*texts, strict=True)] == [whole["drawn"]] * 2
        assert server.app.engine.sessions.evictions > TOKENS
        assert all(t["replays"] for m in models for t in m.traffic() if "replays" in t)


def test_a_restarted_server_goes_on_with_the_text(folder: Path, ids: list[int], whole: dict[str, list[int]]) -> None:
    from helpers.split_serving import running

    def engine() -> Engine:
        return Engine(folder, "1", device="software")

    first = engine()
    server = StageServer(first, port=0)
    port = int(server.url.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        with running(server):
            split = stack.enter_context(load(folder, rest=server.url, device="software"))
            run = split.generate_ids(ids, TOKENS, temperature=1, seed=3)
            text = [next(run) for _ in range(3)]
        first.close()
        second = engine()
        stack.callback(second.close)
        with running(StageServer(second, port=port)):
            assert [*text, *run] == whole["drawn"]
        assert split.traffic()[1]["replays"] == 1


@pytest.mark.slow
def test_cut_at_any_message_the_text_is_the_same(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]]
) -> None:
    server = serve(folder, "1")
    with load(folder, rest=server.url, device="software") as split:
        stage, cuts = split._stages[1], 0
        for after in range(5, 7 + 2 * TOKENS):  # the first four messages open the connection
            proxy = Cutting(server.url, after)
            split._connections[0].close()
            stage.connection = split._connections[0] = Connection(proxy.url, model=server.app.engine.digest)
            assert list(split.generate_ids(ids, TOKENS, temperature=1, seed=3)) == whole["drawn"], after
            proxy.close()
            cuts += proxy.cuts
        assert cuts > TOKENS


def test_cut_while_a_connection_is_opened(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]]
) -> None:
    """Fails if the error of a broken first connection does not name the server, or a reconnection is not retried."""
    server = serve(folder, "1")
    for after in range(1, 5):  # messages of the handshake and of `open`, in both directions
        proxy = Cutting(server.url, after)
        with pytest.raises(GlgptError, match=rf"{proxy.url}.*check that `glgpt split serve` is running there"):
            load(folder, rest=proxy.url, device="software")
        proxy.close()
        assert proxy.cuts == 1
    for again in range(1, 5):
        proxy = Cutting(server.url, 8, 8 + again)
        with load(folder, rest=proxy.url, device="software") as split:
            assert list(split.generate_ids(ids, TOKENS, temperature=1, seed=3)) == whole["drawn"], again
        proxy.close()
        assert proxy.cuts == 2


def test_a_refused_step_is_not_sent_again(serve: Any, folder: Path, ids: list[int]) -> None:
    server = serve(folder, "1")
    width = server.app.engine.config.n_embd
    connection = Connection(server.url)
    connection.submit(0, 2, states(2, width), None)
    connection.take()
    connection.submit(2, 1, np.full(width, np.nan, "<f4").tobytes(), None)
    with pytest.raises(GlgptError, match="NaN or infinity"):
        connection.take()
    assert connection.pending == 0 and connection.traffic.reconnects == 0
    connection.close()


def test_texture_memory_bounds_the_sessions(folder: Path) -> None:
    with contextlib.closing(Engine(folder, "1", device="software")) as engine:
        model, session = engine.stage.texture_bytes, engine.stage.session_bytes
    for room, sessions in ((1, 1), (3, 3), (50, 8)):
        limit = model + room * session + session // 2
        with contextlib.closing(Engine(folder, "1", device="software", max_texture_memory=limit)) as engine:
            assert engine.most == engine.sessions.most == sessions
            look = engine.look(engine.part, Look(seq=0, n=3), np.ones((3, engine.config.n_embd), np.float32))
            if room <= sessions:
                with pytest.raises(GlgptError, match=r"capturing these activations needs .* allow more"):
                    asyncio.run(look)
            else:
                assert asyncio.run(look)
    with pytest.raises(GlgptError, match=r"a session .* more, and --max-texture-memory is .* allow more"):
        Engine(folder, "1", device="software", max_texture_memory=model + session - 1)


def test_an_interrupted_text_leaves_no_answer_to_the_next(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(folder, "1")
    with load(folder, rest=server.url, device="software") as split:
        split.decoder.sizes = (1,)  # so that there are several chunks
        stage, taken = split._stages[1], 0
        take = stage.take

        def interrupted() -> Any:
            nonlocal taken
            taken += 1
            if taken in (2, 9):
                raise KeyboardInterrupt
            return take()

        monkeypatch.setattr(stage, "take", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                list(split.generate_ids([7, *ids[1:]], TOKENS, temperature=0))
        assert list(split.generate_ids(ids, TOKENS, temperature=0)) == whole["greedy"]
        with pytest.raises(KeyboardInterrupt):
            taken = 1
            list(split.generate_ids(ids, TOKENS, temperature=0))
        logits, _ = split.run_with_cache(ids, ["h.1.mlp.act"])
        with LanguageModel.from_pretrained(folder, device="software") as model:
            assert np.array_equal(logits, model.logits(ids))


def test_a_fault_of_the_server_is_said(
    serve: Any, folder: Path, ids: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(folder, "1")

    async def broken(_: Any) -> bytes:
        raise RuntimeError("a fault")

    with load(folder, rest=server.url, device="software") as split:
        with monkeypatch.context() as patch:
            patch.setattr(server.app.engine, "step", broken)
            with pytest.raises(GlgptError, match="the server failed: RuntimeError: a fault"):
                list(split.generate_ids(ids, 2, temperature=0))
        assert "RuntimeError: a fault" in caplog.text
        assert len(list(split.generate_ids(ids, 2, temperature=0))) == 2


def test_over_a_link_of_high_latency_chunks_are_under_way_together(serve: Any, folder: Path) -> None:
    """Fails if six chunks of a prompt take a round trip each, or the text changes."""
    server = serve(folder, "1")
    with LanguageModel.from_pretrained(folder, device="software") as model:
        ids = [i % model.config.vocab_size for i in range(min(6, model.config.n_positions - 4))]
        wanted = list(model.generate_ids(ids, 2, temperature=0))
    proxy = Delaying(server.url, 0.4)
    with load(folder, rest=proxy.url, device="software") as split:
        split.decoder.sizes = (1,)  # a chunk for each token
        list(split.generate_ids(ids, 1, temperature=0))  # compiles the programs
        start = time.perf_counter()
        assert list(split.generate_ids(ids, 2, temperature=0)) == wanted
        assert 0.8 <= time.perf_counter() - start < 0.4 * len(ids)
    proxy.close()


def test_stages_share_the_shortest_context(serve: Any, folder: Path, ids: list[int]) -> None:
    """Fails if a client sends rows beyond the server's caches, or refuses a server with another context."""
    server = serve(folder, "1", context=12)
    with LanguageModel.from_pretrained(folder, context=12, device="software") as model:
        wanted = list(model.generate_ids(ids, 12, temperature=0))  # beyond the context
    with load(folder, rest=server.url, device="software") as split:
        assert split.context == split.max_context == 12
        assert list(split.generate_ids(ids, 12, temperature=0)) == wanted
        with pytest.raises(GlgptError, match=r"13 tokens .* holds 12; shorten it or raise --context"):
            split.logits([1] * 13)
    with load(folder, rest=server.url, context=9, device="software") as split:
        assert split.context == 9
    with pytest.raises(GlgptError, match="a context of 13 is beyond the 12 positions of ws://"):
        load(folder, rest=server.url, context=13, device="software")


def test_a_split_model_gives_the_parameters_of_this_machine(serve: Any, folder: Path) -> None:
    server = serve(folder, "1")
    with (
        load(folder, rest=server.url, device="software") as split,
        Checkpoint.open(folder) as stored,
    ):
        found = split.parameters()
        assert set(found) == set(split._stages[0].part.parameters(stored.config))
        assert all(np.array_equal(array, stored.read(name)) for name, array in found.items())


def test_a_server_that_is_not_there(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(GlgptError, match="glgpt split serve"):
        load(folder, rest=f"ws://127.0.0.1:{port}", device="software")
    for url in ("http://127.0.0.1:1", "ws://", "ws://x:99999", "nonsense"):
        with pytest.raises(GlgptError, match="not a server's address"):
            load(folder, rest=url, device="software")


@pytest.fixture
def hostile() -> Iterator[Any]:
    """Yields a function that starts a server and returns its address.

    The server answers the first message with the fields `opened`, and every later message with `answer(message)`.
    """
    from websockets.sync.server import ServerConnection
    from websockets.sync.server import serve as listen

    with contextlib.ExitStack() as stack:

        def start(opened: dict[str, Any], answer: Any) -> str:
            def handle(socket: ServerConnection) -> None:
                holds = fields_of(socket.recv())[0]["part"]
                said = {"op": "opened", "session": "s", "held": 0, "seq": -1, "holds": holds}
                socket.send(message_of(said | opened))
                for data in socket:
                    asked, _ = fields_of(data)
                    socket.send(answer(asked))

            server = stack.enter_context(listen(handle, "127.0.0.1", 0, compression=None))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

        yield start


LIES: list[tuple[dict[str, Any], dict[str, Any], bytes]] = [
    ({"held": "many"}, {}, b""),
    ({"holds": 7}, {}, b""),
    ({"holds": "1-head" * 3}, {}, b""),
    ({"shape": []}, {}, b""),
    ({"shape": {"n_embd": 10**30}}, {}, b""),
    ({"sizes": ["x"]}, {}, b""),
    ({}, {}, b""),  # the answer has no token
    ({}, {"n": 10**9}, b""),
    ({}, {"tokens": [-1]}, b""),
    ({}, {"tokens": [10**9]}, b""),
    ({}, {"tokens": [1, 2, 3]}, b""),
    ({}, {"tokens": {"0": 1}}, b""),
    ({}, {"tokens": [1], "top": [[[1, "p", 0.5]]]}, b""),
    ({}, {"tokens": [1], "ms": "soon"}, b""),
    ({}, {"tokens": [1], "queue_ms": -1}, b""),
    ({}, {"tokens": [1]}, b"\0" * 7),
    ({}, {"op": "opened", "session": "s", "held": 0, "seq": 0, "holds": "1"}, b""),
    ({}, {"op": "looked", "arrays": []}, b""),
    ({}, {"op": "looked", "arrays": [["logits", [10**6, 10**6]]]}, b""),
    ({}, {"op": "error", "code": ["bad"], "message": 1}, b""),
    ({}, {"op": "error", "code": "bad", "message": "x" * 10_000}, b""),
]


def test_an_honest_server_of_that_kind_is_believed(folder: Path, hostile: Any) -> None:
    with Checkpoint.open(folder) as checkpoint:
        about = {"shape": checkpoint.config.shape()}
    url = hostile(
        about, lambda asked: message_of({"op": "stepped", "seq": asked["seq"], "n": asked["n"], "tokens": [1]})
    )
    with load(folder, blocks=(0, 1), rest=url, device="software") as model:
        assert list(model.generate_ids([1, 2], 2, temperature=0)) == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("opened, answer, payload", LIES, ids=str)
def test_a_server_that_lies_is_told_by_a_sentence(
    folder: Path, hostile: Any, monkeypatch: pytest.MonkeyPatch, opened: dict[str, Any], answer: Any, payload: bytes
) -> None:
    monkeypatch.setattr("glgpt.wire.client.MAX_RESENDS", 1)
    with Checkpoint.open(folder) as checkpoint:
        about = {"shape": checkpoint.config.shape()} | opened

    def say(asked: dict[str, Any]) -> bytes:
        fields = {"op": "stepped", "seq": asked["seq"], "n": asked["n"], **answer}
        return message_of(fields, payload)

    url = hostile(about, say)
    with (
        pytest.raises(GlgptError, match=r"^ws://127.0.0.1|^the last stage|blocks") as refused,
        load(folder, blocks=(0, 1), rest=url, device="software") as model,
    ):
        list(model.generate_ids([1, 2], 2, temperature=0))
    assert len(str(refused.value)) < 1000


def test_a_look_is_bounded_and_leaves_out_the_logits_that_nobody_wants(
    serve: Any, folder: Path, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glgpt.split import engine as engines

    server = serve(folder, "1")
    config, client = server.app.engine.config, raw(server)
    client.open()
    wanted: dict[str, Any] = {"seq": 0, "n": 3, "names": ("h.1.ln_1",)}
    rows = states(3, config.n_embd)
    whole, data = client.say(Look(**wanted), rows)
    assert [name for name, _ in whole["arrays"]] == ["h.1.ln_1", "logits"]
    monkeypatch.setattr(engines, "MAX_CAPTURE_BYTES", 4 * 3 * config.n_embd)
    part, alone = client.say(Look(**wanted, end=False), rows)
    assert part["arrays"] == [["h.1.ln_1", [3, config.n_embd]]] and alone == data[: len(alone)]
    refused, _ = client.say(Look(**wanted), rows)
    assert refused["op"] == "error" and "ask for fewer tokens" in refused["message"]


@pytest.mark.slow
def test_a_look_that_lies_is_told_by_a_sentence(folder: Path, hostile: Any) -> None:
    with Checkpoint.open(folder) as checkpoint:
        about = {"shape": checkpoint.config.shape()}
        vocab = checkpoint.config.vocab_size
    good = [["logits", [2, vocab]], ["h.1.attn.pattern", [checkpoint.config.n_head, 2, 2]]]
    size = 4 * (2 * vocab + checkpoint.config.n_head * 4)
    for arrays, length, wrong in (
        (good, size, None),
        (good, size - 1, "bytes"),
        (good, size - 4, "incompletely"),
        (good[:1], size, "without h.1.attn.pattern"),
        ([good[0], ["h.1.attn.pattern", [1, 2, 2]]], size, "without h.1.attn.pattern"),
        ([["logits", [2**31 - 1] * 2]], size, "incompletely"),
        ([["lo<b>gits", [2, vocab]]], size, "pattern"),
    ):
        url = hostile(
            about,
            lambda asked, arrays=arrays, length=length: message_of(
                {"op": "looked", "seq": asked["seq"], "arrays": arrays}, bytes(length)
            ),
        )
        with load(folder, blocks=(0, 1), rest=url, device="software") as model:
            if wrong is None:
                assert model.run_with_cache([1, 2], ["h.1.attn.pattern"])
                continue
            with pytest.raises(GlgptError, match=wrong):
                model.run_with_cache([1, 2], ["h.1.attn.pattern"])


def test_a_server_that_does_not_come_back_is_named(
    folder: Path, ids: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    from helpers.split_serving import running

    engine = Engine(folder, "1", device="software")
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        with running(StageServer(engine, port=0)) as server:
            split = stack.enter_context(load(folder, rest=server.url, device="software"))
            run = split.generate_ids(ids, TOKENS, temperature=0)
            next(run)
        split._connections[0].patience = 0.3
        with pytest.raises(
            GlgptError, match=r"lost the server.*tried again.*check that `glgpt split serve` is running"
        ):
            list(run)
        warnings = [record.getMessage() for record in caplog.records if record.name == "glgpt.wire.client"]
        assert len(warnings) == 1 and "the connection was lost" in warnings[0] and "trying again for 0 s" in warnings[0]


def test_speculation_gives_the_same_text(serve: Any, folder: Path, whole: dict[str, list[int]]) -> None:
    server = serve(folder, "1")
    loop = [5, 9, 2, 5, 9, 2, 5, 9, 2, 5, 9]
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = [list(model.generate_ids(loop, 12, temperature=t, seed=1)) for t in (0, 1)]
    with load(folder, rest=server.url, speculate=True, device="software") as split:
        assert [list(split.generate_ids(loop, 12, temperature=t, seed=1)) for t in (0, 1)] == wanted
        assert split.decoder.guessed > 0


@pytest.mark.parametrize("sessions", [60, pytest.param(1000, marks=pytest.mark.soak)])
def test_sessions_leave_memory_flat(sessions: int, serve: Any, folder: Path, raw: Any) -> None:
    """Fails if a session leaves GL objects or state. The soak test also measures the memory of the process."""
    server = serve(folder, "1", sessions=2)
    engine = server.app.engine
    width = engine.config.n_embd
    counts, resident = [], []
    for i in range(sessions):
        client = Raw(server.url)
        client.open()
        client.say(Step(seq=0, pos=0, n=2), states(2, width))
        client.stack.close()
        if i in (9, sessions - 1):
            counts.append((len(engine.stage.player.device.live), len(engine.sessions), len(server.app._holders)))
        if i in (199, 999):
            gc.collect()
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert counts[0][:2] == counts[1][:2] and counts[1][2] <= 2
    if sessions == 1000:
        assert resident[1] - resident[0] < 8 << 20, resident


def test_parts_and_looks_share_the_texture_memory(folder: Path) -> None:
    """Fails if the textures exceed the limit, or if a part in use is unloaded for another one."""

    async def step(engine: Engine, session: Any, seq: int) -> None:
        await engine.step(StepRequest(session, Step(seq=seq, pos=seq, n=1), [3], "f32", 0.0))

    async def use(engine: Engine, limit: int) -> None:
        device = engine.stage.player.device
        for part in ("embed,0", "embed,0-1", "embed,0"):  # an unused part is unloaded for the next one
            sessions = [(await engine.open(None, part))[0] for _ in range(2)]
            assert len(engine._narrowed) == 1 and device.texture_bytes <= limit
        for session in sessions:
            await step(engine, session, 0)
        with pytest.raises(GlgptError, match=r"embed,0-1 needs .* --max-texture-memory leaves"):
            await engine.open(None, "embed,0-1")
        await asyncio.gather(*(step(engine, session, 1) for session in sessions))
        names = tuple(engine.part.activations(engine.config))[:-1]
        with pytest.raises(GlgptError, match="capturing these activations needs"):
            await engine.look(
                engine.part, Look(seq=0, n=engine.config.context, names=names), [3] * engine.config.context
            )
        assert device.texture_bytes <= limit and not any(session.evicted for session in sessions)

    with contextlib.closing(Engine(folder, device="software")) as engine:
        before = engine.stage.texture_bytes
        limit = before + 2 * engine.stage.session_bytes
        asyncio.run(engine.open(None, "embed,0-1"))
        limit += engine.stage.player.device.texture_bytes - before
    with contextlib.closing(Engine(folder, device="software", sessions=2, max_texture_memory=limit)) as engine:
        asyncio.run(use(engine, limit))


@pytest.mark.soak
@pytest.mark.slow
def test_a_server_of_all_blocks_runs_those_that_a_client_asks_for(serve: Any, folder: Path, raw: Any) -> None:
    """Tests all split points with one server, simultaneous sessions of two parts, and parts that are reloaded."""
    from glgpt.split import engine as engines

    server = serve(folder, sessions=2)
    engine = server.app.engine
    config = engine.config
    ids = [3, 31, 6]
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = list(model.generate_ids(ids, TOKENS, temperature=1, seed=3))
    plans = ["0@here,1@{0}", "embed@here,+0@{0},1@here", "embed@here,+0-1@{0},head@here", "0@{0},1@{0}"]
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "MAX_IDLE_PARTS", 1)
        patch.setattr(engines, "MAX_PARTS", 2)
        models = [stack.enter_context(load(folder, plan=plan.format(server.url), device="software")) for plan in plans]
        runs = [m.generate_ids(ids, TOKENS, temperature=1, seed=3) for m in models]
        assert [list(t) for t in zip(*zip(*runs, strict=True), strict=True)] == [wanted] * len(plans)
        assert len(engine._narrowed) <= 2 and engine.sessions._made <= 2
        with load(folder, rest=server.url, blocks=(0, 1), device="software") as split:
            assert split.parts[1][0] == "1,head"
            assert list(split.generate_ids(ids, TOKENS, temperature=1, seed=3)) == wanted
    used = raw(server)
    used.open(part="0")
    assert used.say(Step(seq=0, pos=0, n=1), struct.pack("<I", 3))[0]["op"] == "stepped"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "MAX_IDLE_PARTS", 1)
        for part in ("embed", "+0", "head"):  # no step uses these parts, so each unloads an older one
            raw(server).open(part=part)
    assert {str(part) for part in engine._narrowed} == {"1,head", "embed,0", "head"}
    few = serve(folder, "1")
    refused = raw(few).open(part="0-1")
    assert (
        refused["code"] == "unsuitable"
        and "holds 1,head, and the client requests embed,0-1,head; request" in refused["message"]
    )
    assert raw(few).open(part=f"+{config.n_layer}")["code"] == "unsuitable"
    assert raw(few).open(part="1" * 30)["code"] == "unsuitable"


@pytest.mark.slow
def test_messages_that_come_twice_or_in_the_wrong_order_change_no_text(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]]
) -> None:
    server = serve(folder, "1")
    proxy = Shuffling(server.url, swaps=3)
    with load(folder, rest=proxy.url, device="software") as split:
        split.decoder.sizes = (1,)  # a chunk per token of the prompt, several in flight
        assert list(split.generate_ids(ids, TOKENS, temperature=1, seed=3)) == whole["drawn"]
    proxy.close()
    assert proxy.repeated > 2 and proxy.swapped == 3
    always = Shuffling(server.url, swaps=1 << 30)
    with load(folder, rest=always.url, device="software") as split:
        split.decoder.sizes = (1,)
        with pytest.raises(GlgptError, match="lost the text"):
            list(split.generate_ids(ids, TOKENS, temperature=1, seed=3))
    always.close()


@pytest.mark.slow
def test_who_takes_no_answers_is_cut_off_and_holds_nobody_up(
    serve: Any, folder: Path, ids: list[int], whole: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ANSWER_TIMEOUT_S", 0.5)
    server = serve(folder, "+0")
    width = server.app.engine.config.n_embd
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        lazy.sendall(
            f"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        lazy.sendall(framed(messages.encode(Open(protocol=messages.PROTOCOL))))
        rows = server.app.engine.config.n_positions
        with contextlib.suppress(OSError):  # the server closes the connection during a send
            lazy.settimeout(5)
            for seq in range(5000):
                lazy.sendall(framed(messages.encode(Step(seq=seq, pos=0, n=rows), states(rows, width))))
        with load(folder, plan=f"embed@here,+0@{server.url},1@here", device="software") as split:
            assert list(split.generate_ids(ids, TOKENS, temperature=1, seed=3)) == whole["drawn"]
        end = time.monotonic() + 20
        while server.app.connections and time.monotonic() < end:
            time.sleep(0.05)
        assert not server.app.connections


def framed(message: bytes) -> bytes:
    """Returns a binary WebSocket frame with a mask of zeros."""
    return b"\x82" + bytes([0x80 | 127]) + len(message).to_bytes(8, "big") + bytes(4) + message


def test_draining_lets_the_step_under_way_end_and_refuses_others(
    serve: Any, folder: Path, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(folder, "1")
    engine = server.app.engine
    width, held, plain = engine.config.n_embd, threading.Event(), engine.step
    begun: list[asyncio.AbstractEventLoop] = []

    async def slow(fed: Any) -> bytes:
        begun.append(asyncio.get_running_loop())
        while not held.is_set():
            await asyncio.sleep(0.01)
        answer: bytes = await plain(fed)
        return answer

    monkeypatch.setattr(engine, "step", slow)
    first, second = raw(server), raw(server)
    first.open()
    second.open()
    first.socket.send(messages.encode(Step(seq=0, pos=0, n=2), states(2, width)))
    while not begun:
        time.sleep(0.01)
    drained = asyncio.run_coroutine_threadsafe(server.app.drain(), begun[0])
    while not server.app.draining:
        time.sleep(0.01)
    assert second.say(Step(seq=0, pos=0, n=2), states(2, width))[0]["code"] == "draining"
    assert not drained.done()
    held.set()
    assert fields_of(first.socket.recv(timeout=20))[0]["op"] == "stepped"
    drained.result(20)
    assert fields_of(first.socket.recv(timeout=20))[0]["code"] == "draining"


def test_a_server_that_resets_the_connection_is_reported(folder: Path) -> None:
    """Regression: the client printed a traceback, since websockets reports a reset as a closed connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            client, _ = server.accept()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()

        thread = threading.Thread(target=reset)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(GlgptError, match="glgpt split serve"):
            load(folder, rest=f"ws://127.0.0.1:{port}", device="software")
        thread.join()
