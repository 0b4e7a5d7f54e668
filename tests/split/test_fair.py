"""Tests that one client cannot monopolize a server's queue, memory, connections or sessions."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.waiting import until
from test_server import Raw, framed, states

from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.stages.batched_stage import SessionCache, StepInput
from glgpt.inference.stages.stage import Answer
from glgpt.split import limits, protocol, server
from glgpt.split.batching_executor import BatchingExecutor, _Task
from glgpt.split.sessions import Session, Sessions
from glgpt.wire import messages
from glgpt.wire.messages import Look, Looked, Open, Step, encode

LONG = 8 << 20  # bytes of an answer: more than the operating system's socket buffers hold
SHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture
def running(serve: Any, goldens: Path) -> Any:
    return serve(goldens / "llama-grouped", "1")


@pytest.fixture
def client() -> Iterator[Any]:
    """Yields client(server, address), which returns a client that the server sees at this address."""
    made: list[Raw] = []

    def connect(running: Any, address: str = "10.0.0.1") -> Raw:
        made.append(Raw(running.url, additional_headers={"X-Forwarded-For": address}, ping_interval=None))
        return made[-1]

    yield connect
    for each in made:
        with contextlib.suppress(OSError):
            each.stack.close()


def closed(raw: Raw) -> bool:
    """True if the server has closed a connection."""
    from websockets.exceptions import ConnectionClosed

    try:
        raw.socket.recv(timeout=0)
    except TimeoutError:
        return False
    except ConnectionClosed:
        return True
    return False


@contextlib.contextmanager
def busy(engine: Any, name: str = "another") -> Iterator[None]:
    """Keeps the engine's thread busy with a job of the client `name` until the `with` statement ends."""
    gate, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(30)

    done = engine._turns.submit(work, name)
    begun.wait(10)
    try:
        yield
    finally:
        gate.set()
        done.result(10)


def test_the_client_that_has_used_the_least_time_runs_next() -> None:
    """Fails if a client's many long jobs delay another client's job that was submitted later."""
    ran: list[str] = []
    turns: BatchingExecutor[str] = BatchingExecutor(
        "test", lambda jobs: [ran.append("".join(jobs))] * len(jobs), lambda: 3
    )
    gate = threading.Event()

    def work(name: str) -> None:
        ran.append(name)
        time.sleep(0.01)

    try:
        turns.submit(gate.wait, "a")
        futures = [turns.submit(lambda i=i: work(f"a{i}"), "a") for i in range(4)]
        futures += [turns.submit(lambda i=i: work(f"b{i}"), "b") for i in range(2)]
        futures.append(turns.submit(lambda: work("urgent"), "a", urgent=True))
        time.sleep(0.05)
        gate.set()
        for future in futures:
            future.result(10)
        assert ran == ["urgent", "b0", "b1", "a0", "a1", "a2", "a3"]
        ran.clear()
        gate.clear()
        turns.submit(gate.wait, "c")
        for name in ("a1", "a2", "a3", "a4", "b5"):  # each batch of three takes one job of each client first
            futures.append(turns._add(_Task(job=name, whose=name, client=name[0])))
        gate.set()
        for future in futures:
            future.result(10)
        assert len(ran) == 2 and "b5" in ran[0] and len(ran[0]) == 6
        assert len(turns._used) <= 3
    finally:
        turns.close()


def test_an_opening_does_not_wait_for_the_queue(running: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if `open` waits for other clients' steps, or the server does not close a connection without `open`."""
    monkeypatch.setattr(server, "OPEN_TIMEOUT_S", 1.0)
    engine, width = running.app.engine, running.app.engine.config.n_embd
    others = []
    for _ in range(3):
        others.append(client(running, "10.0.0.2"))
        others[-1].open()
    with busy(engine):
        for other in others:
            other.socket.send(encode(Step(seq=0, pos=0, n=2), states(2, width)))
        until(lambda: len(engine._turns) == 3)
        late = client(running)
        late.socket.send(encode(Open(protocol=messages.PROTOCOL)))
        until(lambda: len(engine._turns) == 4)
        time.sleep(1.2)
        assert engine._turns._queue[-1].urgent
    assert messages.decode_answer(late.socket.recv(timeout=20))[0].op == "opened"
    for other in others:
        assert messages.decode_answer(other.socket.recv(timeout=20))[0].op == "stepped"
    silent = client(running)
    assert messages.decode_answer(silent.socket.recv(timeout=20))[0].op == "error"


def test_what_a_client_that_is_gone_waits_for_is_dropped(running: Any, client: Any) -> None:
    engine, width = running.app.engine, running.app.engine.config.n_embd
    ran: list[Any] = []
    plain = engine._step
    engine._step = lambda fed: ran.append(fed) or plain(fed)
    gone, stays = client(running), client(running)
    gone.open()
    stays.open()
    with busy(engine):
        for each in (gone, stays):
            each.socket.send(encode(Step(seq=0, pos=0, n=2), states(2, width)))
        until(lambda: len(engine._turns) == 2)
        gone.stack.close()
        until(lambda: len(running.app.connections) == 1)
    assert messages.decode_answer(stays.socket.recv(timeout=20))[0].op == "stepped"
    assert len(ran) == 1


@pytest.fixture
def long(running: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Makes the server answer each `Look` (a request for activations) with `LONG` bytes.

    `held` is the largest number of bytes in unsent answers so far.
    """
    found, app = SimpleNamespace(held=0, looks=0, server=running), running.app

    async def look(_: Any, look_: Look, *__: Any) -> bytes:
        found.held, found.looks = max(found.held, app.answers.held), found.looks + 1
        return encode(Looked(seq=look_.seq, arrays=[]), bytes(LONG))

    monkeypatch.setattr(app.engine, "look", look)
    monkeypatch.setattr(app.engine, "answer_bytes", lambda _, message: LONG * isinstance(message, Look))
    monkeypatch.setattr(limits, "MAX_LARGE_BYTES", 4 * LONG)
    monkeypatch.setattr(limits, "MAX_CLIENT_BYTES", 2 * LONG)
    monkeypatch.setattr(protocol, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(protocol, "MIN_BYTES_PER_S", 1 << 40)
    return found


def lazy(running: Any, stack: contextlib.ExitStack, looks: int, session: str | None = None) -> socket.socket:
    """Returns the socket of a client that opens a session, requests `looks` long answers and reads none."""
    found = stack.enter_context(contextlib.closing(socket.socket()))
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.connect(("127.0.0.1", int(running.url.rpartition(":")[2])))
    found.sendall(SHAKE)
    while b"\r\n\r\n" not in found.recv(1024):
        continue
    found.sendall(framed(encode(Open(protocol=messages.PROTOCOL, session=session))))
    for seq in range(looks):
        found.sendall(framed(encode(Look(seq=seq, n=1), states(1, running.app.engine.config.n_embd))))
    return found


def test_answers_that_are_not_read_take_bounded_memory(long: SimpleNamespace, client: Any) -> None:
    """Fails if six clients that read nothing can hold more than four long answers in the server's memory."""
    connections = long.server._server.server_state.connections
    buffered = [0]

    def watch() -> bool:
        sizes = [each.transport.get_write_buffer_size() for each in list(connections) if each.transport]
        buffered[0] = max([*buffered, *sizes])
        return len(long.server.app.connections) > 0

    with contextlib.ExitStack() as stack:
        honest = client(long.server)
        honest.open()
        for _ in range(6):
            lazy(long.server, stack, 3)
        until(lambda: long.looks >= 2 and watch())
        for seq in range(20):  # steps with small answers
            watch()
            step = Step(seq=seq, pos=seq, n=1)
            assert honest.say(step, states(1, long.server.app.engine.config.n_embd))[0]["op"] == "stepped"
        assert honest.say(Look(seq=20, n=1), states(1, long.server.app.engine.config.n_embd))[0]["op"] == "looked"
        honest.stack.close()
        until(lambda: not watch())
    assert 0 < long.held <= 4 * LONG and 0 < buffered[0] < 1 << 20
    assert long.server.app.answers.held == 0


def test_a_session_opens_again_while_its_old_connection_does_not_read(
    long: SimpleNamespace, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a client that has lost its network must wait until its old connection is closed."""
    monkeypatch.setattr(protocol, "ANSWER_TIMEOUT_S", 60.0)
    first = client(long.server)
    key = first.open()["session"]
    first.say(Step(seq=0, pos=0, n=1), states(1, long.server.app.engine.config.n_embd))
    with contextlib.ExitStack() as stack:
        lazy(long.server, stack, 1, key)
        until(lambda: long.looks == 1)
        time.sleep(0.2)
        assert client(long.server).open(session=key)["session"] == key


def test_a_client_that_leaves_during_its_answer_leaves_no_traceback(
    long: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(protocol, "ANSWER_TIMEOUT_S", 60.0)
    with contextlib.ExitStack() as stack:
        lazy(long.server, stack, 1)
        until(lambda: long.looks == 1)
        time.sleep(0.1)
    until(lambda: not long.server.app.connections)
    gc.collect()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_pings_without_reading_end_the_connection(long: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if each ping is answered into a buffer that is never emptied."""
    monkeypatch.setattr(protocol, "ANSWER_TIMEOUT_S", 60.0)
    ping = b"\x89\x80" + bytes(4)
    with contextlib.ExitStack() as stack:
        flood = lazy(long.server, stack, 1)
        until(lambda: long.looks == 1)
        time.sleep(0.2)
        with contextlib.suppress(OSError):  # the server closes the connection during a send
            for _ in range(200):
                flood.sendall(ping)
                time.sleep(0.002)
        until(lambda: not long.server.app.connections)


def test_idle_connections_make_way(running: Any, client: Any, goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if idle connections can fill the server and lock out all other clients."""
    app = running.app
    app.connections.most = 6
    monkeypatch.setattr(limits, "IDLE_TIMEOUT_S", 60.0)
    hoard = [client(running, "10.0.0.9") for _ in range(6)]
    for each in hoard:
        assert each.open()["op"] == "opened"
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        assert client(running, address).open()["op"] == "opened"
    until(lambda: sum(map(closed, hoard)) == 3)
    assert client(running, "10.0.0.9").open()["code"] == "full"  # this address has its maximum
    monkeypatch.setattr(limits, "IDLE_TIMEOUT_S", 0.3)
    time.sleep(0.4)
    folder = goldens / "llama-grouped"
    with LanguageModel.from_pretrained(folder, device="software") as model:
        wanted = list(model.generate_ids([3, 31, 6], 8, temperature=1, seed=2))
    with load(folder, rest=running.url, device="software") as split:
        tokens = split.generate_ids([3, 31, 6], 8, temperature=1, seed=2)
        found = [next(tokens) for _ in range(3)]
        time.sleep(0.4)
        for i in range(6):  # each replaces the connection that has been idle longest
            client(running, f"10.0.1.{i}").open()
        found += list(tokens)
        assert found == wanted and split.traffic()[-1]["reconnects"] >= 1


def test_a_connection_that_idles_ends(running: Any, client: Any) -> None:
    running.app.idle = 1.0
    idle, active = client(running), client(running)
    idle.open()
    active.open()
    width = running.app.engine.config.n_embd
    for seq in range(8):
        assert active.say(Step(seq=seq, pos=seq, n=1), states(1, width))[0]["op"] == "stepped"
        time.sleep(0.2)
    assert closed(idle)
    until(lambda: closed(active))


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("a socket's path", "a socket's path"),
    ],
)
def test_a_client_is_an_address_or_a_network(host: str, client: str) -> None:
    connection: Any = SimpleNamespace(client=SimpleNamespace(host=host))
    assert limits.client_of(connection) == client


def test_a_client_with_many_sessions_loses_one_of_its_own() -> None:
    """Fails if one client's new sessions evict another client's session."""
    texts: Any = SimpleNamespace(
        caches=object, forget=lambda _: None, open=True, config=SimpleNamespace(n_positions=9), answer=None
    )
    sessions = Sessions(4, 600.0)

    def use(client: str) -> Session:
        session = sessions.find(None, texts, client)
        sessions._use(session)
        return session

    honest = use("a")
    greedy = [use("b") for _ in range(9)]
    assert not honest.evicted and [each.evicted for each in greedy] == [True] * 6 + [False] * 3
    use("c")
    assert greedy[6].evicted and not honest.evicted


def test_a_joint_pass_evicts_none_of_its_own_sessions() -> None:
    """Fails if a new session takes over the caches of a session whose row runs in the same forward pass."""
    ran: list[StepInput] = []
    texts: Any = SimpleNamespace(
        caches=SessionCache, forget=lambda _: None, open=True, config=SimpleNamespace(context=9)
    )
    texts.answers = lambda fed: ran.extend(fed) or [Answer() for _ in fed]
    sessions = Sessions(4, 600.0)
    live = [Session(texts, client=client) for client in "aaab"]
    for session in live:
        sessions._use(session)
    sessions.steps([(session, 0, [1], None) for session in (*live[:3], Session(texts, client="c"))])
    assert len({step.caches for step in ran}) == 4
    assert [session.evicted for session in live] == [False, False, False, True]
