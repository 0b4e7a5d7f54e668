"""Tests the gateway over real sockets, with a substitute for Flower."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import tempfile
import threading
import time
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason="make test-federate has what this needs")
sync = pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

from helpers.fake_session import make_session  # noqa: E402
from helpers.federation_peer import Peer, wait  # noqa: E402
from starlette.websockets import WebSocketDisconnect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

from glgpt.federation import protocol  # noqa: E402
from glgpt.federation.gateway import routes  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_three_clients_train_all_rounds(served):
    host = served(rounds=3, quorum=3, dtype="f16", outer_lr=1.0, outer_momentum=0.0)
    token = host.gateway.invitations.create()
    start = host.gateway.files.checkpoint().parameters

    def client(number: int) -> None:
        peer = Peer(host, token, name=f"c{number}")
        assert peer.next("welcome")["member"] in range(3)
        for _ in range(3):
            round_ = peer.next("round")
            said = peer.train(round_, round_["parameters"] + np.float32(0.125 * (number + 1)))
            assert said["type"] == "accepted", said
        assert "done" in peer.next("closed")["why"]

    threads = [threading.Thread(target=client, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    held = host.gateway.files.checkpoint()
    assert held.round == 3
    assert np.allclose(held.parameters, start + 3 * 0.25, atol=1e-3)
    notes = host.gateway.files.notes()
    assert [n["round"] for n in notes] == [1, 2, 3] and notes[0]["clients"] == 3
    assert {d["name"] for d in notes[0]["devices"]} == {"c0", "c1", "c2"}


def test_without_a_token_4403_and_nothing_else(served):
    host = served()
    good = host.gateway.invitations.create()
    for token, change in (("", {}), ("x.y", {}), (good, {"digest": "0" * 64}), (good, {"tokenizer": "0" * 64})):
        peer = Peer(host, token, **change)
        assert peer.closed()[0] == 4403
        assert peer.heard == []
    raw = sync.connect(host.address.replace("http", "ws") + "v1/socket")
    raw.send("no json")
    with pytest.raises(ConnectionClosed) as caught:
        raw.recv(timeout=30)
    assert caught.value.rcvd.code == 4403
    assert not host.gateway.rounds.members


def test_another_page_may_not_connect(served):
    host = served()
    address = host.address.replace("http", "ws") + "v1/socket"
    with pytest.raises(InvalidStatus):
        sync.connect(address, origin="https://elsewhere.example")
    sync.connect(address, origin=host.address.rstrip("/")).close()


def asked(host: Any) -> tuple[Peer, str, str, Any]:
    """Returns a client, its invitation, its resume key, and the round that it has to train."""
    token = host.gateway.invitations.create()
    peer = Peer(host, token)
    key = peer.next("welcome")["resume"]
    return peer, token, key, peer.next("round")


def announced(host: Any) -> tuple[Peer, str, str, dict[str, Any], bytes]:
    """Returns a client, its invitation, its resume key, an update that the gateway expects, and the update's bytes."""
    peer, token, key, round_ = asked(host)
    update, data = peer.update(round_, round_["parameters"] + 1)
    peer.say(update)
    assert peer.next("ready")["have"] == 0
    return peer, token, key, update, data


def test_an_upload_resumes_where_it_stopped(served):
    host = served(quorum=1, rounds=1)
    peer, token, key, round_ = asked(host)
    update, data = peer.update(round_, round_["parameters"] + 1)
    assert len(data) < protocol.MAX_FRAME_BYTES  # a single frame, which is sent again from its start
    peer.say(update)
    assert peer.next("ready")["have"] == 0
    peer.socket.close()
    again = Peer(host, token, resume=key)
    assert again.next("welcome")["member"] == 0
    assert again.train(again.next("round"), round_["parameters"] + 1)["type"] == "accepted"


def test_frames_that_came_are_not_sent_again(served, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1000)
    host = served(quorum=1, rounds=1)
    peer, token, key, update, data = announced(host)
    for frame in list(protocol.frames(data))[:3]:
        peer.socket.send(frame)
    assert [peer.next("ack")["have"] for _ in range(3)] == [1, 2, 3]
    peer.socket.close()
    again = Peer(host, token, resume=key)
    again.next("round")
    again.say(update)
    assert again.next("ready")["have"] == 3
    for frame in list(protocol.frames(data))[3:]:
        again.socket.send(frame)
    assert again.next("accepted")["attempt"] == update["attempt"]


def test_frames_that_come_while_a_round_goes_to_the_disk_count(served, monkeypatch):
    """Fails if the gateway drops frames that a fast device sends while the gateway still writes the round to disk."""
    from glgpt.federation.rounds.rounds import Rounds

    keep_open, acknowledged, kept = Rounds.keep_open, threading.Event(), threading.Event()

    def slowly(rounds):
        acknowledged.wait(30)
        keep_open(rounds)
        kept.set()

    monkeypatch.setattr(Rounds, "keep_open", slowly)
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1000)
    peer, _, _, update, data = announced(served(quorum=1, rounds=1))
    frames = list(protocol.frames(data))
    peer.socket.send(frames[0])
    assert peer.next("ack")["have"] == 1 and not kept.is_set()
    acknowledged.set()
    kept.wait(30)
    for frame in frames[1:]:
        peer.socket.send(frame)
    assert peer.next("accepted")["attempt"] == update["attempt"]


def test_an_upload_whose_socket_closed_at_its_end_is_taken(served, monkeypatch):
    from glgpt.federation.gateway.connection import Client

    host = served(quorum=1, rounds=1)
    peer, token, key, round_ = asked(host)
    update, data = peer.update(round_, round_["parameters"] + 1)
    say, lost = Client.say, []

    async def closes(self, message, *more):
        if message["type"] == "ack" and not lost:
            lost.append(message)
            await self.socket.close()
            raise WebSocketDisconnect
        await say(self, message, *more)

    monkeypatch.setattr(Client, "say", closes)
    peer.say(update)
    peer.next("ready")
    peer.socket.send(data)
    peer.closed()
    again = Peer(host, token, resume=key)
    again.next("round")
    again.say(update)
    assert again.next("accepted")["attempt"] == update["attempt"]


@pytest.mark.parametrize("bad", ["nan", "short", "tokens", "text"])
def test_a_poisoned_client_ends_nothing(served, bad):
    host = served(rounds=2, quorum=2, grace=1.0)
    token = host.gateway.invitations.create()
    good, other, evil = (Peer(host, token, name=name) for name in ("good", "other", "evil"))
    for number in (1, 2):
        round_ = evil.next("round")
        after = round_["parameters"] + 1
        if bad == "nan":
            said = evil.train(round_, np.full(len(after), np.nan))
        elif bad == "short":
            said = evil.train(round_, after, bytes=12)
        elif bad == "tokens":
            said = evil.train(round_, after, tokens=10**9)
        else:
            evil.say('{"type": "update"}')
            said = evil.next("rejected")
        assert said["type"] == "rejected", said
        for peer in (good, other):
            assert peer.train(peer.next("round"), after)["type"] == "accepted"
        wait(lambda number=number: host.gateway.files.round_of() >= number)
    assert all(len(rows) == 2 for rows in host.site.replies)


def test_a_client_that_does_not_read_gets_no_more_than_buffers_hold(served):
    """Regression: the gateway buffered everything for clients that read slowly or not at all."""
    config = make_session().settings.model_config(256)
    wide = dataclasses.replace(config, n_embd=256, n_positions=1 << 15)
    host = served(config=wide.fields(), parameters=wide.parameter_count, quorum=1)
    whole = 4 * wide.parameter_count
    lazy, reads = Peer(host, host.gateway.invitations.create()), Peer(host, host.gateway.invitations.create())
    assert reads.next("round")["bytes"] == whole
    member = next(c.member for c in host.gateway.sockets.clients if c.member.bytes_out < whole)
    time.sleep(0.5)
    assert 0 < member.bytes_out < whole / 2
    assert len(lazy.next("round")["parameters"]) == wide.parameter_count  # a client that reads again receives the rest


def test_a_stale_update_is_answered_with_the_current_weights(served):
    host = served(rounds=3, quorum=1, grace=0.0)
    token = host.gateway.invitations.create()
    slow, quick = Peer(host, token), Peer(host, token)
    old = slow.next("round")
    assert quick.train(quick.next("round"), old["parameters"] + 1)["type"] == "accepted"
    new = slow.next("round")
    assert new["round"] == 2
    said = slow.train(old, old["parameters"] + 1)
    assert said["type"] == "rejected" and "stale" in said["why"]
    assert slow.next("round")["attempt"] == new["attempt"]


def test_too_much_closes_the_socket(served):
    host = served()
    token = host.gateway.invitations.create()
    peer = Peer(host, token)
    peer.next("round")
    peer.say({"type": "update", "round": 1})
    assert "why" in peer.next("rejected")
    with contextlib.suppress(ConnectionClosed):
        for _ in range(2000):
            peer.say({"type": "ping", "n": 1})
    assert peer.closed()[0] in (4413, 0)  # 0: the gateway did not read the client's last data
    wait(lambda: host.gateway.rounds.members[0].connections == 0)
    large = Peer(host, token)
    large.next("round")
    with contextlib.suppress(ConnectionClosed):
        large.say("x" * (protocol.MAX_TEXT_BYTES + 1))
    assert large.closed()[0] == 4413


def test_a_refused_range_of_the_model_leaves_no_file(served, tmp_path, monkeypatch):
    """Regression: the temporary zip file, as large as the model, was never deleted."""
    host = served()
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    token = host.gateway.invitations.create(kind="host")
    for part, status in (("bytes=99999999-", 416), ("bytes=0-3", 206)):
        headers = {"Authorization": f"Bearer {token}", "Range": part}
        assert httpx.get(f"{host.address}v1/model", headers=headers, trust_env=False).status_code == status
        wait(lambda: not list(folder.iterdir()))


def test_rest_wants_the_right_token(served):
    host = served()
    member, boss = host.gateway.invitations.create(), host.gateway.invitations.create(kind="host")

    def call(path: str, token: str = "", method: str = "GET", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.request(method, host.address + path, headers=headers, trust_env=False, **more)

    for path in ("v1/session", "v1/session/text", "v1/session/tokenizer"):
        assert call(path).status_code == 401 and call(path, "a.b").status_code == 401
        assert call(path, member).status_code == 200
    for path, method in (
        ("v1/status", "GET"), ("v1/pause", "POST"), ("v1/invitations", "POST"), ("v1/members/0", "DELETE"),
        ("v1/session", "DELETE"), ("v1/model", "GET"),
    ):  # fmt: skip
        assert call(path, member, method).status_code == 401, path
    made = call("v1/invitations", boss, "POST", json={"uses": 1, "hours": 2}).json()
    assert call("v1/session", made["token"]).status_code == 200
    for wrong in ('{"uses": 0}', '{"hours": 1e999}', '{"hours": NaN}', '{"hours": 1' + 400 * "0" + "}"):
        assert call("v1/invitations", boss, "POST", content=wrong).status_code == 400, wrong
    assert call("v1/invitations", boss).status_code == 200  # regression: infinite `hours` broke the list
    assert call(f"v1/invitations/{made['digest']}", boss, "DELETE").status_code == 200
    assert call("v1/session", made["token"]).status_code == 401
    (host.gateway.files.run / "config.json").write_text("{}")
    with zipfile.ZipFile(io.BytesIO(call("v1/model", boss).content)) as archive:  # a folder for `generate --model`
        assert archive.namelist() == ["model/config.json", "model/vocab.json"]
    peer = Peer(host, member, name="<b>me</b>")
    peer.next("welcome")
    status = call("v1/status", boss).json()
    assert status["members"][0]["name"] == "<b>me</b>" and "key" not in status["members"][0]
    assert call("v1/members/0", boss, "DELETE").status_code == 200
    assert peer.closed()[0] == 4410
    assert call("v1/members/7", boss, "DELETE").status_code == 404
    for path in ("v1/control/list-runs", "v1/runtime/pull-messages", "v1/fleet/pull-messages", "../secret"):
        assert call(path, boss, "POST").status_code in (404, 405), path
    assert call("", "").status_code == 200  # the dashboard's page needs no token
    assert "default-src 'self'" in call("", "").headers["content-security-policy"]
    ids = np.frombuffer(call("v1/session/text", member).content, "<u4")
    assert len(ids) == 500


def test_the_text_is_sent_from_its_file_a_few_times_at_once(served, monkeypatch):
    """Fails if each request copies the text, or a client may send any number of requests at once."""
    host = served()
    ids = np.arange(3_000_000, dtype=np.uint16)
    np.save(host.gateway.files.ids, ids)
    monkeypatch.setattr(routes, "MAX_TEXT_REQUESTS", 3)
    monkeypatch.setattr(routes, "MAX_TEXTS", 1)
    asked: list[object] = []

    class Counted(routes._Text):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            asked.append(self)

    monkeypatch.setattr(routes, "_Text", Counted)
    url = host.address + "v1/session/text"
    options: dict[str, Any] = {
        "headers": {"Authorization": f"Bearer {host.gateway.invitations.create()}"},
        "trust_env": False,
        "timeout": 60,
    }

    def fetched() -> Any:
        return np.frombuffer(httpx.get(url, **options).content, "<u4")

    tracemalloc.start()
    try:
        with ThreadPoolExecutor() as pool, httpx.stream("GET", url, **options) as slow:  # reads nothing yet
            assert slow.status_code == 200
            wait(lambda: len(asked) == 1)
            time.sleep(0.3)
            assert tracemalloc.get_traced_memory()[1] < 4 * len(ids) / 2
            waiting = [pool.submit(fetched) for _ in range(2)]
            wait(lambda: len(asked) == 3)
            assert httpx.get(url, **options).status_code == 429
            assert not any(one.done() for one in waiting)
            assert np.array_equal(np.frombuffer(slow.read(), "<u4"), ids)
            assert all(np.array_equal(one.result(60), ids) for one in waiting)
    finally:
        tracemalloc.stop()
    assert np.array_equal(fetched(), ids)


def test_pause_and_end(served):
    host = served(rounds=9, quorum=1)
    boss, token = host.gateway.invitations.create(kind="host"), host.gateway.invitations.create()
    headers = {"Authorization": f"Bearer {boss}"}
    pause = {"url": host.address + "v1/pause", "headers": headers, "trust_env": False}
    assert httpx.post(json={"paused": True}, **pause).json() == {"paused": True}
    peer = Peer(host, token)
    peer.next("welcome")
    with pytest.raises(TimeoutError):
        peer.next("round", timeout=1.5)
    httpx.post(json={"paused": False}, **pause)
    assert peer.next("round")["round"] == 1
    httpx.delete(host.address + "v1/session", headers=headers, trust_env=False)
    assert "host ended" in peer.next("closed")["why"]


def test_who_leaves_at_once_is_not_waited_for(served):
    host = served()
    token = host.gateway.invitations.create()
    for _ in range(8):
        Peer(host, token, resume="").socket.socket.close()  # without a close frame, while the gateway sends
    sockets, members = host.gateway.sockets, host.gateway.rounds.members
    wait(lambda: not sockets.clients and all(member.connections == 0 for member in members.values()))
    wait(lambda: not sockets._of_address["127.0.0.1"])


def test_an_answer_that_its_run_wants_no_more_is_given_to_the_next(served):
    host = served(rounds=2, quorum=1)
    host.site.runs_over = 1
    peer = Peer(host, host.gateway.invitations.create())
    for _ in range(2):
        round_ = peer.next("round")
        assert peer.train(round_, round_["parameters"] + 1)["type"] == "accepted"
    assert "done" in peer.next("closed")["why"]
    assert len(host.site.replies) == 2


def test_many_sockets(served):
    host = served(rounds=1, quorum=40, shards=64, members=64, train_tokens=500)
    token = host.gateway.invitations.create()
    peers = [Peer(host, token) for _ in range(40)]
    for peer in peers:
        round_ = peer.next("round")
        assert peer.train(round_, round_["parameters"] + 1)["type"] == "accepted"
    wait(lambda: host.gateway.files.round_of() == 1)
    assert len(host.site.replies[0]) == 40
