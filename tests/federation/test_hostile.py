"""Clients and hosts that mean harm, over real sockets: none ends a session, fills a memory or learns a secret."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("httpx", reason="make test-federate has what this needs")
pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

from peer import Peer, wait

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
