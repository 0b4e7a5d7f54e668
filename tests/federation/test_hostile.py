"""Clients and hosts that mean harm, over real sockets: none ends a session, fills a memory or learns a secret."""

from __future__ import annotations

import logging
import socket
import ssl

import pytest
from certificate import certificate
from fake_session import FakeFlower, make_files, serving

pytest.importorskip("httpx", reason="make test-federate has what this needs")
pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

import httpx
from peer import Peer, wait
from websockets.exceptions import InvalidStatus
from websockets.sync import client as sync

from glgpt.federation import logs
from glgpt.federation.invitations import digest
from glgpt.federation.logs import BURST, PERIOD, Throttle, rotate

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_claim_beyond_what_a_round_gives_is_rejected(served):
    """A loss of 1e308 made the round's loss infinite, which no line of JSON can hold: the session hung for good."""
    host = served(rounds=1, quorum=1, grace=0.2)
    token = host.gateway.invitations.create()
    evil, good = Peer(host, token), Peer(host, token)
    round_ = evil.next("round")
    for claim in ({"loss": 1e308}, {"loss": 23.0}, {"seconds": 1e300}, {"tokens": 10**100}):
        evil.say(evil.update(round_, round_["parameters"] + 1, **claim)[0])
        assert evil.next("rejected")["why"]
    assert good.train(good.next("round"), round_["parameters"] + 1)["type"] == "accepted"
    wait(lambda: host.gateway.files.round_of() == 1)


@pytest.mark.parametrize("task", ["_tick", "_report", "_answer"])
def test_a_background_task_that_fails_ends_the_gateway(served, task, monkeypatch, caplog):
    """Before, the session hung without a word."""

    async def fails():
        raise ValueError("out of range")

    host = served()
    with caplog.at_level(logging.CRITICAL):
        monkeypatch.setattr(host.gateway, task, fails)
        host.thread.join(30)
    assert not host.thread.is_alive() and host.gateway.failed
    assert "out of range" in caplog.text


def test_a_full_disk_ends_nothing(served, monkeypatch):
    from glgpt.federation.gateway import Gateway

    report, failures = Gateway._report, []

    async def full(self):
        if len(failures) < 2:
            failures.append(1)
            raise OSError(28, "No space left on device")
        await report(self)

    monkeypatch.setattr(Gateway, "_report", full)
    host = served(quorum=1, rounds=1)
    peer = Peer(host, host.gateway.invitations.create())
    assert peer.next("state") and len(failures) == 2


# -- connections and logs ----------------------------------------------------------------


def test_half_open_requests_keep_no_one_out(served):
    """1,100 of them took the gateway's descriptors: nobody could join, and the task that sends news died."""
    from glgpt.page.connections import Limits

    host = served(Limits(total=64, address=40, request=1.5), quorum=1, rounds=1)
    port = int(host.address.rsplit(":", 1)[1].strip("/"))
    halves = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(38)]
    for half in halves[::2]:
        half.sendall(b"GET /v1/socket HTTP/1.1\r\nHost: x\r\n")
    peer = Peer(host, host.gateway.invitations.create())
    round_ = peer.next("round")
    wait(lambda: len(host.connections) == 1, 15)  # the WebSocket has no such deadline
    assert peer.train(round_, round_["parameters"] + 1)["type"] == "accepted"
    assert "done" in peer.next("closed")["why"]
    peer.socket.close()
    wait(lambda: not len(host.connections))
    for half in halves:
        half.close()


def test_a_handshake_that_stops_is_closed_in_time(tmp_path):
    """A limit where a request begins would not see these."""
    from glgpt.page.connections import Limits

    cert, key = certificate(tmp_path)
    files = make_files(tmp_path / "run")
    limits = Limits(total=64, address=20, request=1.0)
    with serving(files, FakeFlower(files), limits, ssl_certfile=str(cert), ssl_keyfile=str(key)) as host:
        port = int(host.address.rsplit(":", 1)[1].strip("/"))
        halves = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(30)]
        wait(lambda: len(host.connections) == 20)
        wait(lambda: not len(host.connections))
        trusted = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(host.address.replace("http", "https"), verify=trusted, trust_env=False).status_code == 200
        for half in halves:
            half.close()


def test_sockets_are_counted_by_the_address_that_a_proxy_forwards(served, monkeypatch):
    from glgpt.federation import gateway

    monkeypatch.setattr(gateway, "ADDRESS_SOCKETS", 2)
    host = served()
    address = host.address.replace("http", "ws") + "v1/socket"

    def connect(forwarded):
        return sync.connect(address, additional_headers={"X-Forwarded-For": forwarded}, compression=None)

    held = [connect("192.0.2.1"), connect("192.0.2.1"), connect("192.0.2.2")]
    with pytest.raises(InvalidStatus):
        connect("192.0.2.1")
    assert len(held) == 3


def test_a_log_drops_what_repeats_too_often():
    now, lines = [0.0], []
    log = logging.Logger("noisy")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    handler.addFilter(Throttle(lambda: now[0]))
    log.addHandler(handler)

    def flood():
        for i in range(1000):
            log.error("out of descriptors: %d", i)

    flood()
    log.error("another place")
    assert lines == [f"out of descriptors: {i}" for i in range(BURST)] + ["another place"]
    now[0] = PERIOD + 1
    flood()
    assert lines[BURST + 1] == "out of descriptors: 0 (980 more like this one were dropped)"


def test_a_large_log_is_rotated_while_a_process_appends(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 1000)
    log = tmp_path / "gateway.log"
    with log.open("ab", buffering=0) as file:
        for _ in range(100):
            file.write(b"x" * 99 + b"\n")
            rotate(log)
        file.write(b"last\n")
    assert log.stat().st_size <= 1100 and log.read_bytes().endswith(b"last\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gateway.log", "gateway.log.1"]
    rotate(tmp_path / "none.log")


# -- invitations -------------------------------------------------------------------------


def test_a_revoked_invitation_closes_its_sockets(served):
    """Who had joined by it stayed, and its resume key was good for the session's text."""
    host = served()
    boss = {"Authorization": f"Bearer {host.gateway.invitations.create(kind='host')}"}
    bad, good = host.gateway.invitations.create(), host.gateway.invitations.create()
    out, stays = Peer(host, bad), Peer(host, good)
    key = out.next("welcome")["resume"]
    out.next("round")
    stays.next("round")
    member = {"Authorization": f"Bearer {key}"}
    assert httpx.get(host.address + "v1/session", headers=member, trust_env=False).status_code == 200
    url = f"{host.address}v1/invitations/{digest(bad)}"
    assert httpx.delete(url, headers=boss, trust_env=False).json() == {"revoked": True, "members": [0]}
    assert out.closed() == (4403, "the invitation was revoked")
    assert httpx.get(host.address + "v1/session", headers=member, trust_env=False).status_code == 401
    assert stays.next("state")
    again = Peer(host, good, resume=key)
    assert again.next("welcome")["member"] == 0 and again.next("round")


def test_a_seat_that_is_given_to_another_closes_its_socket(served):
    host = served(shards=1, rounds=9, quorum=1)
    token = host.gateway.invitations.create()
    idle = Peer(host, token)
    idle.next("round")
    host.gateway.rounds.members[0].since = -9  # as after some rounds
    new = Peer(host, token)
    assert new.next("welcome")["member"] == 0
    code, why = idle.closed()
    assert code == 4429 and "another device" in why
    round_ = new.next("round")
    assert new.train(round_, round_["parameters"] + 1)["type"] == "accepted"
