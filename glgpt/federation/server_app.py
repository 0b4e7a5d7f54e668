"""Defines Flower's ServerApp, which runs a session's rounds from the last checkpoint on, with Flower's public API.

To Flower, a site (a gateway with all its clients) is one node. A site's reply contains the updates of all its clients,
or one combined update if the updates are large. The ServerApp makes each update a separate reply, so that any Flower
strategy sees every client. It first drops invalid replies, because strategies raise exceptions for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from glgpt.errors import quoted
from glgpt.federation.aggregation import strategies
from glgpt.federation.aggregation.updates import KEY, arrays_of, client_reply, number_in
from glgpt.federation.exchange import Supernodes, exchange, from_supernode
from glgpt.federation.protocol import Vector
from glgpt.federation.session import Checkpoint, Files, NotFiniteError, Session

logger = logging.getLogger("flwr")
app = ServerApp()
# Seconds for which the ServerApp waits for supernodes (users' own Flower nodes) after a round's `round_seconds` and
# `grace`, because a supernode starts a process for each round
SUPERNODE_START_S = 30.0


def strategy_of(session: Session) -> Strategy:
    """Returns a session's Flower strategy, with which every site takes part in each round."""
    return strategies.create(session.strategy, session)


def memory_of(strategy: Strategy) -> dict[str, np.ndarray]:
    """Returns the state that a strategy needs in the next round, such as the outer optimizer's velocity."""
    return {name: value[KEY] for name in strategies.STATE if (value := getattr(strategy, name, None))}


def remember(strategy: Strategy, memory: Mapping[str, Any]) -> None:
    """Restores the state that `memory_of` returned, and clears all state that `memory` does not contain."""
    for name in strategies.STATE:
        if hasattr(strategy, name):
            setattr(strategy, name, {KEY: memory[name]} if name in memory else None)


@dataclass(frozen=True)
class Limits:
    """The largest values that a site's reply may contain."""

    tokens: float
    loss: float  # nats per token


def expanded(reply: Message, asked: Message, parameters: Vector, limits: Limits) -> list[Message]:
    """Splits a site's reply into one reply per client. Drops invalid updates with a warning in the log."""
    if reply.has_error():
        logger.warning("a node failed: %s", quoted(reply.error.reason, 300))
        return []
    try:
        rows = reply.content.array_records["arrays"]["updates"].numpy()
        metrics = reply.content.metric_records["metrics"]
        tokens, losses = _floats(metrics["tokens"]), _floats(metrics["loss"])
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("a site's reply lacks a field, or a field is malformed: %s", error)
        return []
    if rows.ndim != 2 or rows.shape[1] != len(parameters) or not len(rows) == len(tokens) == len(losses):
        logger.warning("a site's reply has updates of shape %s", rows.shape)
        return []
    replies = []
    for row, count, loss in zip(rows, tokens, losses, strict=True):
        if not (np.isfinite(row).all() and 0 < count <= limits.tokens and 0 <= loss <= limits.loss):
            logger.warning("an invalid update of a client is left out: %g tokens, loss %g", count, loss)
            continue
        replies.append(client_reply(asked, row, count, loss))
    return replies


def combined(strategy: Strategy, number: int, before: Vector, replies: list[Message], files: Files) -> Vector:
    """Saves and returns the parameters after round `number`, which started from `before`.

    Saves and returns `before` if the strategy returns no parameters, or if its parameters or its state have a NaN or an
    infinity.
    """
    memory = dict(memory_of(strategy))
    arrays, _ = strategy.aggregate_train(number, replies)
    if arrays is None:
        logger.warning("round %d has no updates to combine", number)
    after = before if arrays is None else np.asarray(arrays[KEY].numpy(), np.float32)
    try:
        files.save(Checkpoint(number, after, memory_of(strategy)))
    except NotFiniteError as error:
        logger.error("%s; the weights of the previous round are retained", error)
        remember(strategy, memory)
        files.save(Checkpoint(number, before, memory))
        return before
    return after


def clients_of(reply: Message) -> int:
    """Returns the number of clients in a site's reply, or 0 if the reply is malformed."""
    try:
        return int(number_in(reply.content, "clients"))
    except (KeyError, TypeError, ValueError, AssertionError):
        return 0


def _floats(value: Any) -> list[float]:
    return [float(number) for number in value]


class Nodes:
    """A Grid with fixed nodes. With Flower's own Grid, a strategy would wait forever for a node that has left."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def get_node_ids(self) -> list[int]:
        """Returns the ids of the nodes."""
        return self.ids


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds that follow the checkpoint."""
    files = Files(Path(str(context.run_config["folder"])))
    session, held = files.session(), files.checkpoint()
    strategy = strategy_of(session)
    remember(strategy, held.memory)
    parameters = held.parameters
    limits = Limits(float(session.local_steps * session.recipe.rows * session.members), session.bounds.loss)
    supernodes = Supernodes(grid)
    for number in range(held.round + 1, session.rounds + 1):
        began, record = time.monotonic(), arrays_of(parameters)

        def ask(nodes: list[int], attempt: int, number: int = number, record: ArrayRecord = record) -> list[Message]:
            config = ConfigRecord({"round": number, "attempt": attempt})
            return list(strategy.configure_train(number, record, config, Nodes(nodes))) if nodes else []

        def gateways(attempt: int, ask: Callable[..., list[Message]] = ask) -> list[Message]:
            return ask(sorted(files.gateway_nodes() & set(grid.get_node_ids())), attempt)

        known = files.gateway_nodes()
        # Supernodes do not train in a `bounded` session, in which gateways must receive all changes. Nor do they train
        # before the nodes of all gateways are known, because an unknown node may be a gateway.
        if not session.bounded and len(known) == session.gateways:
            supernodes.ask(ask(supernodes.free(sorted(set(grid.get_node_ids()) - known)), 0))
        answers, attempt = exchange(grid, partial(gateways, 0)), 0
        while session.gateways > 1 and sum(clients_of(reply) for _, reply in answers) < session.quorum:
            attempt += 1  # the gateways retain their updates and wait for more
            answers = exchange(grid, partial(gateways, attempt))
        replies = [one for question, reply in answers for one in expanded(reply, question, parameters, limits)]
        norms = session.norm_limits(number, parameters, files.notes())
        for answer in supernodes.answers(began + session.round_seconds + session.grace + SUPERNODE_START_S):
            if taken := from_supernode(answer, parameters, session, norms):
                replies.append(taken[0])
                files.note({"round": number, **taken[1]})
        parameters = combined(strategy, number, parameters, replies, files)
