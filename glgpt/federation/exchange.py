"""Asking Flower's nodes for a round: the gateways, which all are waited for, and supernodes, which have their time.

A supernode's answer comes from outside. It is pulled in a thread of its own and checked before anything counts it: none
can hold a round up for longer than its time, or end it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from glgpt.errors import quoted
from glgpt.federation import rules
from glgpt.federation.flower import AWAY
from glgpt.federation.protocol import MAX_SECONDS, Vector
from glgpt.federation.session import Session

logger = logging.getLogger("flwr")
POLL = 0.3  # seconds
AGAIN = 8.0  # seconds, then twice as many, after which a gateway is asked again: a killed one may not know of the round
MOST = 64  # supernodes that are asked in a round
KEY = "parameters"
ALIKE = "alike"  # a weight that is the same for all

Answer = tuple[Message, Message]  # what was asked, and the reply


def arrays_of(parameters: Vector) -> ArrayRecord:
    """The parameters as strategies take them."""
    return ArrayRecord({KEY: Array(np.ascontiguousarray(parameters, np.float32))})


def client_reply(question: Message, parameters: Vector, tokens: float, loss: float) -> Message:
    """One client's update as strategies take it."""
    figures = MetricRecord({"num-examples": tokens, "loss": loss, ALIKE: 1.0})
    return Message(RecordDict({"arrays": arrays_of(parameters), "metrics": figures}), reply_to=question)


def exchange(grid: Grid, make: Callable[[], list[Message]]) -> list[Answer]:
    """Asks all gateways and waits for their answers.

    `make` gives a message to each that is there. One that says nothing is asked again. Returns when all that were asked
    and are still there have answered.
    """
    asked: dict[str, Message] = {}
    found: dict[int, Answer] = {}
    wanted: set[int] = set()
    sent = patience = 0.0
    while not wanted or not wanted <= found.keys():
        if not wanted or time.monotonic() - sent > patience:
            patience = 2 * patience if wanted else AGAIN
            messages = make()
            wanted = {m.metadata.dst_node_id for m in messages} | (wanted & found.keys())
            messages = [m for m in messages if m.metadata.dst_node_id not in found]
            asked |= dict(zip(grid.push_messages(messages), messages, strict=True))
            sent = time.monotonic()
        for reply in grid.pull_messages(list(asked)):
            question = asked.pop(reply.metadata.reply_to_message_id, None)
            if question is not None and not reply.has_error():
                found[question.metadata.dst_node_id] = question, reply
        time.sleep(POLL)
    return list(found.values())


class Supernodes:
    """The supernodes of a run. One that is still busy with an earlier round is not asked for another."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._threads: dict[int, threading.Thread] = {}
        self._asked: list[threading.Thread] = []  # in this round
        self._found: list[Answer] = []
        self._over = threading.Event()

    def free(self, nodes: Sequence[int]) -> list[int]:
        """Those of `nodes` that can be asked now, `MOST` at most."""
        self._threads = {node: thread for node, thread in self._threads.items() if thread.is_alive()}
        return [node for node in nodes if node not in self._threads][: MOST - len(self._threads)]

    def ask(self, messages: Sequence[Message]) -> None:
        """Sends each its message, of a new round."""
        self._asked, self._found, self._over = [], [], threading.Event()
        for message in messages:
            thread = threading.Thread(target=self._wait_for, args=(message, self._found, self._over), daemon=True)
            self._threads[message.metadata.dst_node_id] = thread
            self._asked.append(thread)
            thread.start()

    def _wait_for(self, message: Message, found: list[Answer], over: threading.Event) -> None:
        try:
            (name,) = self._grid.push_messages([message])
            while not over.is_set():
                for reply in self._grid.pull_messages([name]):  # waits for all of it, for hours if it is sent slowly
                    if not (reply.has_error() and reply.error.code in AWAY):
                        found.append((message, reply))
                    return
                time.sleep(POLL)
        except Exception as error:  # whatever a node sends
            logger.warning("%s is left out: %s", name_of(message.metadata.dst_node_id), quoted(error, 300))

    def answers(self, until: float) -> list[Answer]:
        """What has come when all have answered, or at `until` of the monotonic clock."""
        for thread in self._asked:
            thread.join(max(0.0, until - time.monotonic()))
        self._over.set()
        return list(self._found)


def name_of(node: int) -> str:
    """What the others see of a supernode; its number is nobody's business, who knows it can send it messages."""
    return f"supernode {hashlib.sha256(str(node).encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class SupernodeClaims:
    """Returns what a supernode reports about its steps."""

    tokens: int
    steps: int
    loss: float


def from_supernode(
    answer: Answer, parameters: Vector, session: Session, limits: rules.NormLimits
) -> tuple[Message, dict[str, Any]] | None:
    """A supernode's reply as strategies take it, and its line of `rounds.jsonl`; None for one that is not as agreed."""
    question, reply = answer
    name = name_of(question.metadata.dst_node_id)
    try:
        if reply.has_error():
            raise ValueError(reply.error.reason)
        metrics = reply.content.metric_records["metrics"]
        (tokens,), (loss,), steps, seconds = (metrics[figure] for figure in ("tokens", "loss", "steps", "seconds"))
        (row,) = reply.content.array_records["arrays"]["updates"].numpy()
        if row.shape != parameters.shape or row.dtype != np.float32 or not np.isfinite(row).all():
            raise ValueError(f"its update is not {len(parameters)} finite numbers")
        claims = SupernodeClaims(int(tokens), int(steps), float(loss))
        rules.check_claims(claims, session.bounds)
        norm = rules.norm(row - parameters)
        limits.check(norm, claims.steps)
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"it claims {seconds:g} s")
        told = {"tokens": claims.tokens, "loss": claims.loss}
        device = {"member": None, "name": name, **told, "steps": claims.steps, "norm": norm, "said": ""}
        line = {"clients": 1, **told, "seconds": float(seconds), "streamed": False}
        return client_reply(question, row, float(tokens), claims.loss), line | {"devices": [device], "site": name}
    except Exception as error:  # whatever a node sends
        logger.warning("%s is left out: %s", name, quoted(error, 300))
        return None
