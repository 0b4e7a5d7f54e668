"""Tests hostile clients and hosts over real sockets: none can end a session, fill the memory or read a secret."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl

import pytest
from certificate import certificate
from helpers.command_line import refused
from helpers.fake_session import FakeFlower, make_files, serving

pytest.importorskip("httpx", reason="make test-federate has what this needs")
pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

import httpx
from helpers.federation_peer import Peer, wait
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync import client as sync

from glgpt.cli import main
from glgpt.cli.commands.federate.common import call_gateway
from glgpt.errors import GlgptError
from glgpt.federation import protocol
from glgpt.federation.invitations import COMMANDS, HOST, HOST_LINK, digest
from glgpt.federation.operation import logs
from glgpt.federation.operation.logs import MAX_RECORDS, PERIOD_S, Throttle, rotate
from glgpt.federation.serve import Place, Places, Supervisor

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_claim_beyond_what_a_round_gives_is_rejected(served):
    """Regression: a loss of 1e308 made the round's loss infinite. JSON cannot hold infinity, and the session hung."""
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
    """Regression: the session hung without an error."""

    async def fails():
        raise ValueError("out of range")

    host = served()
    with caplog.at_level(logging.CRITICAL):
        monkeypatch.setattr(host.gateway, task, fails)
        host.thread.join(30)
    assert not host.thread.is_alive() and host.gateway.failed
    assert "out of range" in caplog.text


def test_a_full_disk_ends_nothing(served, monkeypatch):
    from glgpt.federation.gateway.service import Gateway

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
    """Regression: 1,100 half-open requests used up the file descriptors. No client could join or receive news."""
    from glgpt.page.connections import Limits

    host = served(Limits(total=64, address=40, request=1.5), quorum=1, rounds=1)
    port = int(host.address.rsplit(":", 1)[1].strip("/"))
    halves = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(38)]
    for half in halves[::2]:
        half.sendall(b"GET /v1/socket HTTP/1.1\r\nHost: x\r\n")
    peer = Peer(host, host.gateway.invitations.create())
    round_ = peer.next("round")
    wait(lambda: len(host.connections) == 1, 15)  # the request deadline does not close the WebSocket
    assert peer.train(round_, round_["parameters"] + 1)["type"] == "accepted"
    assert "done" in peer.next("closed")["why"]
    peer.socket.close()
    wait(lambda: not len(host.connections))
    for half in halves:
        half.close()


def test_a_handshake_that_stops_is_closed_in_time(tmp_path):
    """Fails if only requests have a deadline: a TLS handshake that stops never becomes a request."""
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
    from glgpt.federation.gateway import sockets

    monkeypatch.setattr(sockets, "MAX_ADDRESS_SOCKETS", 2)
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
    assert lines == [f"out of descriptors: {i}" for i in range(MAX_RECORDS)] + ["another place"]
    now[0] = PERIOD_S + 1
    flood()
    assert lines[MAX_RECORDS + 1] == "out of descriptors: 0 (980 similar records were dropped)"


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
    """Regression: members who had joined with the invitation stayed, and their keys still gave access to the text."""
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
    host.gateway.rounds.members[0].since = -9  # as if it had joined rounds ago
    new = Peer(host, token)
    assert new.next("welcome")["member"] == 0
    code, why = idle.closed()
    assert code == 4429 and "lost its place" in why
    round_ = new.next("round")
    assert new.train(round_, round_["parameters"] + 1)["type"] == "accepted"


# -- messages ----------------------------------------------------------------------------


def raw(host, **more):
    return sync.connect(host.address.replace("http", "ws") + "v1/socket", compression=None, **more)


def test_a_first_message_of_bytes_is_refused(served, caplog):
    """Regression: a first message of bytes logged a traceback, even from a client without a token."""
    host = served()
    for first in (b"bytes", b"", "", "[" * 50_000, '{"type": "ping", "n": 1}', "é" * 200):
        socket_ = raw(host)
        socket_.send(first)
        with pytest.raises(ConnectionClosed) as caught:
            socket_.recv(timeout=30)
        assert caught.value.rcvd.code == 4403, first
    assert "Traceback" not in caplog.text and "Exception" not in caplog.text


def test_pages_of_the_proxys_address_may_connect(served):
    host = served()
    host.gateway.sockets.origins = (Place(url="https://example.org/team/").origin(),)
    raw(host, origin="https://example.org").close()
    for origin in ("https://example.org.evil.example", "http://[", "null"):
        with pytest.raises(InvalidStatus):
            raw(host, origin=origin)


def test_frames_that_no_update_announced_close_the_socket(served, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1000)
    host = served(quorum=1, rounds=9)
    token = host.gateway.invitations.create()
    for frame in (b"x", b"", b"x" * 1000):
        peer = Peer(host, token)
        peer.next("round")
        peer.socket.send(frame)
        assert peer.closed()[0] == 4413
    more, other = Peer(host, token), Peer(host, token)
    round_ = more.next("round")
    update, data = more.update(round_, round_["parameters"] + 1)
    more.say(update)
    more.next("ready")
    other.socket.send(data[:1000])  # `more`, not this socket, has announced the update
    assert other.closed()[0] == 4413
    for frame in protocol.frames(data):
        more.socket.send(frame)
    assert more.next("accepted")
    more.socket.send(data[:1000])
    assert more.closed()[0] == 4413


def test_frames_of_an_update_that_was_turned_away_meanwhile_are_dropped(served, monkeypatch):
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1000)
    host = served(quorum=1, rounds=9, grace=0.0)
    token = host.gateway.invitations.create()
    slow, quick = Peer(host, token), Peer(host, token)
    round_ = slow.next("round")
    update, data = slow.update(round_, round_["parameters"] + 1)
    slow.say(update)
    slow.next("ready")
    assert quick.train(quick.next("round"), round_["parameters"] + 1)["type"] == "accepted"
    second = slow.next("round")
    for frame in protocol.frames(data):
        slow.socket.send(frame)
    assert slow.train(second, second["parameters"] + 0.5)["type"] == "accepted"


def test_an_update_that_two_sockets_finish_counts_once(served, monkeypatch):
    """Regression: a socket deleted the member's next upload, because another socket had finished the first upload."""
    from glgpt.federation.gateway.connection import Client

    host = served(quorum=1, rounds=1)
    token = host.gateway.invitations.create()
    first = Peer(host, token)
    key = first.next("welcome")["resume"]
    round_ = first.next("round")
    update, data = first.update(round_, round_["parameters"] + 1)
    second = Peer(host, token, resume=key)
    second.next("round")
    say, held = Client.say, []

    async def waits(self, message, *more):
        if message["type"] == "ack" and not held:
            held.append(message)
            second.say(update)  # finds the upload complete, and finishes it
            await asyncio.sleep(1.0)
        await say(self, message, *more)

    monkeypatch.setattr(Client, "say", waits)
    first.say(update)
    first.next("ready")
    first.socket.send(data)
    assert second.next("accepted")["attempt"] == update["attempt"]
    assert first.next("ack")["have"] == 1
    first.say({"type": "ping", "n": 7})
    assert first.next("pong")["n"] == 7  # the first socket is still open


def test_a_claim_of_thousands_of_digits_is_not_repeated(served):
    host = served()
    token = host.gateway.invitations.create()
    peer, other = Peer(host, token), Peer(host, token)
    update, _ = peer.update(peer.next("round"), host.gateway.files.checkpoint().parameters)
    for change in ({"tokens": int("9" * 4000)}, {"steps": 2**52}, {"type": "ping", "n": int("9" * 4000)}):
        message = {"type": "ping", "n": change["n"]} if "n" in change else update | change
        peer.say(message)
        assert len(peer.next("rejected")["why"]) <= 200
    shown = next(m for m in other.next("state")["members"] if m["number"] == 0)
    assert len(json.dumps(shown)) < 1000


def test_a_long_session_fits_a_message(served):
    """Fails if the message lists the devices of every round: desktops close the socket if a message exceeds 1 MiB."""
    host = served(rounds=900)
    device = {"member": 1, "name": "n" * 40, "tokens": 1, "steps": 1, "loss": 1.0, "norm": 1.0, "said": "accepted"}
    line = {"clients": 100, "loss": 2.0, "devices": [device] * 20, "step": 1, "sample": "s" * 1000}
    lines = "".join(json.dumps({"round": number} | line) + "\n" for number in range(1, 600))
    (host.gateway.files.folder / "rounds.jsonl").write_text(lines)
    peer = Peer(host, host.gateway.invitations.create())
    rounds = peer.next("welcome")["rounds"]
    assert len(rounds) == 500 and rounds[-1]["sample"] and len(json.dumps(rounds)) < 200_000


# -- the host's token --------------------------------------------------------------------


def test_a_dashboards_link_works_once(served):
    """Regression: the link's token stayed in the browser's history and was valid for ten years."""
    host = served()
    link = host.gateway.invitations.create(kind=HOST_LINK)

    def call(token, method="GET", path="v1/status", **more):
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.request(method, host.address + path, headers=headers, trust_env=False, **more)

    made = call(link, "POST", "v1/host/token")
    assert made.status_code == 201
    token = made.json()["token"]
    assert call(token).status_code == 200
    assert call(link).status_code == call(link, "POST", "v1/host/token").status_code == 401  # the link was used
    other = call(token, "POST", "v1/host/link").json()["token"]
    assert call(call(other, "POST", "v1/host/token").json()["token"]).status_code == 200
    last = call(token, "POST", "v1/host/link", json={"rotate": True}).json()["token"]
    listed = host.gateway.invitations.listed()
    assert sum(x["kind"] in (HOST, HOST_LINK) and not x["revoked"] for x in listed) == 2
    assert call(token).status_code == call(last).status_code == 200
    member = host.gateway.invitations.create()
    for path in ("v1/host/token", "v1/host/link"):
        assert call(member, "POST", path).status_code == 401


def test_each_start_ends_the_token_of_the_last_one(tmp_path):
    files = make_files(tmp_path / "run")
    supervisor = Supervisor.__new__(Supervisor)
    places = [Place(host="0.0.0.0", port=1234, url="https://example.org/team/")]
    supervisor.files, supervisor.places = files, Places(places, Place(), [])
    first = supervisor.links()
    path = files.folder / "host.json"
    assert path.stat().st_mode & 0o777 == 0o600
    (stored,) = json.loads(path.read_text())["gateways"]
    assert (stored["address"], stored["base"]) == ("http://127.0.0.1:1234/", "https://example.org/team/")
    own = stored["token"]
    assert own not in str(first)  # the dashboard's link has another token
    files.invitations().check(own, COMMANDS)
    supervisor.links()
    with pytest.raises(GlgptError):
        files.invitations().check(own, COMMANDS)
    for links in (first, supervisor.links()):  # links of members and dashboards stay valid
        files.invitations().check(links[0]["desktop"].partition("#")[2])
        files.invitations().check(links[0]["dashboard"].partition("#host=")[2], HOST_LINK)


def test_commands_of_the_host_accept_a_certificate_for_another_name(tmp_path, monkeypatch):
    """Regression: a session behind a proxy, or with a certificate for its public name, was reported as not running."""
    cert, key = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    files = make_files(tmp_path / "run")
    with serving(files, FakeFlower(files), ssl_certfile=str(cert), ssl_keyfile=str(key)) as host:
        address = host.address.replace("http://127.0.0.1", "https://localhost")  # the certificate is for 127.0.0.1
        own = {"token": host.gateway.invitations.create(kind=COMMANDS), "address": address}
        assert (call_gateway(own, "GET", "v1/status") or {})["session"] == files.session().id


def test_the_link_command_prints_another_link(served, capsys):
    host = served()
    token = host.gateway.invitations.create(kind=COMMANDS)
    path = host.gateway.files.folder / "host.json"
    hosts = {"gateways": [{"token": token, "address": host.address, "base": "https://example.org/team/"}]}
    path.write_text(json.dumps(hosts))
    assert main(["federate", "link", str(host.gateway.files.run)]) == 0
    link = capsys.readouterr().out.strip()
    assert link.startswith("https://example.org/team/#host=")
    assert main(["federate", "link", str(host.gateway.files.run), "--rotate", "--json"]) == 0
    (other,) = json.loads(capsys.readouterr().out)["dashboards"]
    host.gateway.invitations.check(other.partition("#host=")[2], HOST_LINK)
    with pytest.raises(GlgptError):
        host.gateway.invitations.check(link.partition("#host=")[2], HOST_LINK)
    path.write_text(json.dumps({"gateways": [{"token": "x.y", "address": host.address}]}))
    assert "does not answer" in refused(capsys, "federate", "link", str(host.gateway.files.run))
    path.unlink()
    assert "not being served" in refused(capsys, "federate", "link", str(host.gateway.files.run))
