"""Sends a round to Flower's nodes. Waits for the answers of all gateways, but for supernodes only until a deadline.

A supernode is a Flower node that a user runs, without a gateway. Its answer is untrusted input. Each supernode's answer
is pulled in a separate thread and checked before it counts. So no supernode can make a round fail, or delay the end of
a round beyond the deadline.
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
from flwr.app import Message
from flwr.serverapp import Grid

from glgpt.errors import quoted
from glgpt.federation import rules
from glgpt.federation.aggregation.updates import client_reply
from glgpt.federation.flower.error_codes import OFFLINE
from glgpt.federation.protocol import MAX_SECONDS, Vector
from glgpt.federation.session import Session

logger = logging.getLogger("flwr")
POLL_INTERVAL_S = 0.3
# Seconds after which an unanswered request to a gateway is repeated, because a killed gateway may have lost the
# request. The time doubles with each repetition.
REQUEST_TIMEOUT_S = 8.0
MAX_SUPERNODES = 64  # maximum number of supernodes with an unanswered request

Answer = tuple[Message, Message]  # the message that was sent to a node, and the node's reply


def exchange(grid: Grid, make: Callable[[], list[Message]]) -> list[Answer]:
    """Sends a message to all gateways and waits for their answers.

    `make` creates a message for each connected gateway. Messages without an answer are sent again. Returns when every
    gateway that received a message and is still connected has answered.
    """
    asked: dict[str, Message] = {}
    found: dict[int, Answer] = {}
    wanted: set[int] = set()
    sent = patience = 0.0
    while not wanted or not wanted <= found.keys():
        if not wanted or time.monotonic() - sent > patience:
            patience = 2 * patience if wanted else REQUEST_TIMEOUT_S
            messages = make()
            wanted = {m.metadata.dst_node_id for m in messages} | (wanted & found.keys())
            messages = [m for m in messages if m.metadata.dst_node_id not in found]
            asked |= dict(zip(grid.push_messages(messages), messages, strict=True))
            sent = time.monotonic()
        for reply in grid.pull_messages(list(asked)):
            question = asked.pop(reply.metadata.reply_to_message_id, None)
            if question is not None and not reply.has_error():
                found[question.metadata.dst_node_id] = question, reply
        time.sleep(POLL_INTERVAL_S)
    return list(found.values())


class Supernodes:
    """The supernodes of a run. A supernode that is still busy with an earlier round does not receive a new one."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._threads: dict[int, threading.Thread] = {}
        self._asked: list[threading.Thread] = []  # the threads of this round
        self._found: list[Answer] = []
        self._over = threading.Event()

    def free(self, nodes: Sequence[int]) -> list[int]:
        """Returns the `nodes` that can receive a round now. At most `MAX_SUPERNODES` are busy at once."""
        self._threads = {node: thread for node, thread in self._threads.items() if thread.is_alive()}
        return [node for node in nodes if node not in self._threads][: MAX_SUPERNODES - len(self._threads)]

    def ask(self, messages: Sequence[Message]) -> None:
        """Starts a round: sends each message to the node that is its destination."""
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
                for reply in self._grid.pull_messages([name]):  # may take hours if the node sends slowly
                    if not (reply.has_error() and reply.error.code in OFFLINE):
                        found.append((message, reply))
                    return
                time.sleep(POLL_INTERVAL_S)
        except Exception as error:  # a node may send anything
            logger.warning("%s is left out: %s", name_of(message.metadata.dst_node_id), quoted(error, 300))

    def answers(self, until: float) -> list[Answer]:
        """Waits until all nodes have answered or `until` (monotonic clock) has passed. Returns the answers received."""
        for thread in self._asked:
            thread.join(max(0.0, until - time.monotonic()))
        self._over.set()
        return list(self._found)


def name_of(node: int) -> str:
    """Returns the public name of a node. Node IDs are private: anyone who knows one can message the node."""
    return f"supernode {hashlib.sha256(str(node).encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class SupernodeClaims:
    """The metrics that a supernode reports about its training steps in a round."""

    tokens: int
    steps: int
    loss: float


def from_supernode(
    answer: Answer, parameters: Vector, session: Session, limits: rules.NormLimits
) -> tuple[Message, dict[str, Any]] | None:
    """Returns a supernode's update as a message for Flower's strategies, and the line about it for `rounds.jsonl`.

    Returns None, after logging the reason, if the reply is invalid.
    """
    question, reply = answer
    name = name_of(question.metadata.dst_node_id)
    try:
        if reply.has_error():
            raise ValueError(reply.error.reason)
        metrics = reply.content.metric_records["metrics"]
        (tokens,), (loss,), steps, seconds = (metrics[figure] for figure in ("tokens", "loss", "steps", "seconds"))
        (row,) = reply.content.array_records["arrays"]["updates"].numpy()
        if row.shape != parameters.shape or row.dtype != np.float32 or not np.isfinite(row).all():
            raise ValueError(f"the update is not {len(parameters)} finite numbers")
        claims = SupernodeClaims(int(tokens), int(steps), float(loss))
        rules.check_claims(claims, session.bounds)
        norm = rules.norm(row - parameters)
        limits.check(norm, claims.steps)
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"the update claims a time of {seconds:g} s; the time must be from 0 to {MAX_SECONDS:g} s")
        told = {"tokens": claims.tokens, "loss": claims.loss}
        device = {"member": None, "name": name, **told, "steps": claims.steps, "norm": norm, "said": ""}
        line = {"clients": 1, **told, "seconds": float(seconds), "streamed": False}
        return client_reply(question, row, float(tokens), claims.loss), line | {"devices": [device], "site": name}
    except Exception as error:  # a node may send anything
        logger.warning("%s is left out: %s", name, quoted(error, 300))
        return None
