"""Exports Prometheus metrics of a gateway (`--metrics`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from glgpt.federation.gateway.service import Gateway

ROUND = Gauge("glgpt_federation_round", "Number of finished rounds.")
ROUNDS = Gauge("glgpt_federation_rounds", "Number of rounds of the session.")
PAUSED = Gauge("glgpt_federation_paused", "1 while the host has paused the session.")
SOCKETS = Gauge("glgpt_federation_sockets", "Open sockets of members.")
MEMBERS = Gauge("glgpt_federation_members", "Members with an open socket.")
ANSWERS = Gauge("glgpt_federation_round_updates", "Updates that the open round has received.")
UPDATES = Counter("glgpt_federation_updates", "Updates of members, by result.", ["result"])
BYTES = Gauge("glgpt_federation_member_bytes", "Bytes exchanged with the known members.", ["direction"])


def observe(gateway: Gateway) -> None:
    """Connects the metrics to a gateway: when Prometheus reads them, they have the gateway's current values."""
    rounds, files = gateway.rounds, gateway.files
    ROUND.set_function(files.round_of)
    ROUNDS.set(gateway.session.rounds)
    PAUSED.set_function(lambda: files.paused)
    SOCKETS.set_function(lambda: len(gateway.sockets.clients))
    MEMBERS.set_function(lambda: sum(member.connections > 0 for member in list(rounds.members.values())))
    ANSWERS.set_function(lambda: len(rounds.open.updates) if rounds.open else 0)
    BYTES.labels("in").set_function(lambda: sum(member.bytes_in for member in list(rounds.members.values())))
    BYTES.labels("out").set_function(lambda: sum(member.bytes_out for member in list(rounds.members.values())))
    for result in ("accepted", "rejected"):
        UPDATES.labels(result)  # so that both counters are exported as 0 at first
