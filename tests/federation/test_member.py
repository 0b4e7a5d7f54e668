"""Tests that a desktop that joins a hostile host reveals no key of another session, and limits what it accepts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx", reason="make test-federate has what this needs")

from helpers.fake_session import FakeFlower, make_files, make_session, serving

from glgpt.errors import ArgumentError, GlgptError
from glgpt.federation import protocol
from glgpt.federation.gateway.connection import Client as Connection
from glgpt.federation.member import host as host_module
from glgpt.federation.member import join
from glgpt.federation.member.host import Host, Link
from glgpt.federation.rounds.members import Members

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Worker:
    """Replaces the class that trains, and needs no device."""

    trainer = SimpleNamespace(device=SimpleNamespace(renderer="none"))

    def __init__(self, session: Any, ids: Any, device: Any, slot: Any) -> None:
        self.slot = slot

    def train(self, *_: Any) -> None:
        return None

    def close(self) -> None:
        self.slot.unlock()


@pytest.fixture
def joined(monkeypatch, tmp_path) -> Callable[..., Any]:
    """Returns a function that returns a client of a host, and lists of the states and answers that it reports."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(join, "Worker", Worker)

    def start(host: Any, name: str = "") -> Any:
        words: list[str] = []
        answers: list[Any] = []
        hooks = join.Hooks(on_state=words.append, on_round=answers.append)
        link = Link.parse(f"{host.address}#{host.gateway.invitations.create()}")
        client = join.Client(link, None, name=name, device="software", hooks=hooks)
        return SimpleNamespace(client=client, words=words, answers=answers)

    return start


def welcomed(found: Any) -> Any:
    """Runs a client until it is admitted, then stops it."""
    entered = threading.Event()
    found.client.hooks.on_state = lambda text: (found.words.append(text), text.startswith("joined") and entered.set())
    thread = threading.Thread(target=found.client.run, daemon=True)
    thread.start()
    assert entered.wait(30)
    found.client.stop.set()
    thread.join(30)
    return found


@pytest.fixture
def gateways(tmp_path) -> Iterator[list[Any]]:
    """Yields two hosts. The second host claims the session of the first."""
    files = [make_files(tmp_path / name) for name in ("honest", "hostile")]
    for one in files:
        (one.run / "vocab.json").write_text("{}")
    assert files[0].session().id == files[1].session().id
    with serving(files[0], FakeFlower(files[0])) as a, serving(files[1], FakeFlower(files[1])) as b:
        yield [a, b]


def test_a_host_gets_no_key_of_another_hosts_session(gateways, joined):
    """Regression: a host that used another session's id received the member's key for that session."""
    honest, hostile = gateways
    key = welcomed(joined(honest)).client.worker.slot.key
    back = joined(honest).client
    assert back._join().resume == key != ""
    assert (back.worker.slot.folder / "member.json").stat().st_mode & 0o777 == 0o600
    assert joined(hostile).client._join().resume == ""


def test_words_of_a_host_reach_the_terminal_as_text(gateways, joined, monkeypatch):
    say = Connection.say

    async def closes(self: Any, message: dict[str, Any], *more: Any) -> None:
        await say(self, message, *more)
        if message["type"] == "welcome":
            await say(self, {"type": "closed", "why": "\x1b]0;title\x07\x9b2J"})

    monkeypatch.setattr(Connection, "say", closes)
    found = joined(gateways[0], "\x1b[2Jme")
    assert found.client.run() == "\\x1b]0;title\\x07\\x9b2J"
    assert "joined as \\x1b[2Jme; waiting for a round" in found.words
    found.client.socket.round = join.Round(SimpleNamespace(attempt="1-a", round=1), np.zeros(1, np.float32))
    found.client.socket._answered(protocol.Answer(type="rejected", attempt="1-a", why="\x1b[2J"))
    assert found.answers == [{"type": "rejected", "round": 1, "why": "\\x1b[2J"}]


@pytest.mark.parametrize("name", ["x" * 41, "\udcff"], ids=ascii)
def test_a_name_that_no_host_accepts_is_refused(gateways, joined, name):
    """Regression: the client tried to join with such a name again and again."""
    with pytest.raises(ArgumentError, match=r"--name .* is not UTF-8 text of at most 40 characters"):
        joined(gateways[0], name)


def test_a_client_reconnects_as_the_same_member(gateways, joined, monkeypatch):
    """Fails if the first message of a new connection lacks the resume key of the previous one."""
    admit, keys = Members.admit, []

    def admits(self: Any, message: protocol.Join) -> Any:
        keys.append(message.resume)
        return admit(self, message)

    monkeypatch.setattr(Members, "admit", admits)
    found = joined(gateways[0])

    def said(text: str) -> None:
        if text.startswith("joined") and len(keys) == 1:
            found.client.socket._connection.close()
        elif text.startswith("joined"):
            found.client.stop.set()

    found.client.hooks.on_state = said
    found.client.run()
    assert keys == ["", found.client.worker.slot.key]


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 10**12}, {"bytes": 4}, {"bytes": -1}, {"lr": [0.1] * 5}, {"lr": [1e999]}, {"seed": 1 << 32},
        {"shard": [0]}, {"attempt": "x" * 999}, {"lr": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_round_that_the_terms_do_not_give_ends_the_client(gateways, joined, monkeypatch, change):
    """Regression: the client trusted the size in `bytes`, so that a host could fill the client's memory."""
    say = Connection.say

    async def lies(self: Any, message: dict[str, Any], data: Any = b"", *more: Any) -> None:
        if message["type"] == "round":
            await self.socket.send_text(str(message | change).replace("'", '"').replace("None", "null"))
            return
        await say(self, message, data, *more)

    monkeypatch.setattr(Connection, "say", lies)
    with pytest.raises(GlgptError, match="an invalid message"):
        joined(gateways[0]).client.run()


@pytest.fixture
def endless() -> Iterator[Any]:
    """Yields the link of a host that answers with endless data, and the number of bytes sent."""
    sent = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    sent[0] += self.wfile.write(b"[" * (1 << 16))
            except OSError:
                pass

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(link=Link(f"http://127.0.0.1:{server.server_address[1]}/", "a.b"), sent=sent)
    server.shutdown()


def test_a_host_cannot_send_for_ever(endless, monkeypatch):
    monkeypatch.setattr(host_module, "MAX_TERMS_BYTES", 1 << 18)
    monkeypatch.setattr(host_module, "MAX_TOKENIZER_BYTES", 1 << 18)
    session = make_session(train_tokens=1 << 16)
    for ask in (Host.session, Host.tokenizer, lambda host: host.ids(session)):
        with pytest.raises(GlgptError, match="sends more than the maximum of 262,144 bytes"):
            ask(Host(endless.link))
    assert endless.sent[0] < 64 << 20


def test_a_session_beyond_this_machines_memory_is_refused(gateways, joined, monkeypatch):
    honest = gateways[0]
    monkeypatch.setattr(host_module, "physical_memory", lambda: 100_000)
    with pytest.raises(GlgptError, match=r"training its model of .* takes .* more than half of this machine's"):
        joined(honest)
    link = Link.parse(f"{honest.address}#{honest.gateway.invitations.create()}")
    with pytest.raises(GlgptError, match=r"text of 1,000,000,000 tokens takes 3.7 GiB.*join with your own text"):
        Host(link).ids(make_session(train_tokens=10**9))
    monkeypatch.undo()
    with pytest.raises(GlgptError, match="sent 2,000 bytes of text, not 2,004"):
        Host(link).ids(make_session(train_tokens=501))
    assert host_module.physical_memory() > 1 << 28


def test_a_session_that_contradicts_its_model_is_refused(gateways, joined):
    gateways[0].gateway.session = gateways[0].gateway.session.model_copy(update={"parameters": 5})
    with pytest.raises(GlgptError, match=r"describes a model of .* parameters but reports 5"):
        joined(gateways[0])


def test_a_session_of_another_version_is_refused(monkeypatch):
    """Regression: a field of the model's configuration that this version lacks caused a traceback."""
    about = make_session().model_dump(mode="json")
    about["config"]["new"] = 1
    monkeypatch.setattr(Host, "get", lambda *_: json.dumps(about))
    with pytest.raises(GlgptError, match="runs an incompatible version of glgpt"):
        Host(Link("http://host/", "a.b")).session()


def test_moments_are_stored_or_an_error_names_their_file(tmp_path):
    """Regression: a full disk or a missing folder raised safetensors' own exception, and caused a traceback."""
    from glgpt.federation.member.worker import Slot

    slot = Slot(tmp_path, lambda: None)
    slot.keep_moments({"a": np.ones((2, 3), np.float32)}, 4)
    read, steps = slot.moments()
    assert steps == 4 and np.array_equal(read("a"), np.ones((2, 3)))
    with pytest.raises(OSError, match=r"missing/moments\.safetensors"):
        Slot(tmp_path / "missing", lambda: None).keep_moments({"a": np.ones(3, np.float32)}, 5)


def test_a_shard_without_places_is_refused():
    from glgpt.federation.member.worker import Asked
    from glgpt.federation.member.worker import Worker as RealWorker

    worker = RealWorker.__new__(RealWorker)
    worker.session, worker.ids = make_session(), np.zeros(20, np.uint16)
    with pytest.raises(GlgptError, match="shard 3 of 256; the text has 12 positions"):
        worker.train(Asked(1, 0, (0.1,), 0, (3, 256)), np.zeros(1, np.float32), lambda *_: "on")


def test_a_link_of_the_dashboard_is_no_invitation() -> None:
    assert Link.parse("http://host:8043/train/#together=a.b").token == "a.b"
    with pytest.raises(GlgptError, match="opens the host's dashboard"):
        Link.parse("http://host:8043/#host=a.b")
    for text in ("http://[", "http://host:8043/#…", "http://host:8043/#a.…", "http://host:99999/#a.b"):
        with pytest.raises(GlgptError, match="is not an invitation"):
            Link.parse(text)


@pytest.mark.parametrize("base", ["http://host:8043/", "http://host/train/", "https://host/strain/"])
def test_a_link_names_its_host(base: str) -> None:
    """Regression: `train/` was also removed from links for desktops, where `train/` is part of the host's path."""
    for link in (f"{base}#a.b", f"{base}train/#view=train&together=a.b&tokens=1"):
        assert Link.parse(link) == Link(base, "a.b")
