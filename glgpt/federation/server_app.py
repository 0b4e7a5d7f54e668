"""The ServerApp: the rounds of a session on Flower's public interface, from its last checkpoint on.

A site answers with all its clients' updates; each becomes a reply of its own, so that any Flower strategy sees every
client. A reply that is not as agreed is left out before the strategy, which would raise, sees it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Strategy,
)

from glgpt.federation.flower import AWAY
from glgpt.federation.protocol import Vector
from glgpt.federation.rules import TRIM, Outer, trimmed_mean, weighted_mean
from glgpt.federation.session import Checkpoint, Files, Session

logger = logging.getLogger("flwr")
app = ServerApp()
POLL = 0.3  # seconds
AGAIN = 8.0  # seconds, then twice as many, after which a round is asked for again: a killed site may not know of it
STARTING = 30.0  # seconds that a supernode may take beyond a round: it starts a process for each
KEY = "parameters"
ALIKE = "alike"  # a weight that is the same for all
ADAM = ("m_t", "v_t")


class Diloco(FedAvg):
    """FedAvg whose mean is a step of an outer Nesterov optimizer; with `trim`, a trimmed mean."""

    def __init__(self, outer: Outer, trim: bool, **options: Any) -> None:
        super().__init__(**options)
        self.outer, self.trim = outer, trim
        self.current: Vector = np.zeros(0, np.float32)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does; the parameters are what the outer step starts from."""
        self.current = arrays[KEY].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The parameters after the round."""
        good = [reply.content for reply in replies if not reply.has_error()]
        if not good:
            return None, None
        rows = np.stack([content.array_records["arrays"][KEY].numpy() for content in good])
        weights = [float(_number(content, "num-examples")) for content in good]
        mean = trimmed_mean(rows) if self.trim else weighted_mean(rows, weights)
        after = self.outer.step(self.current, mean)
        losses = [float(_number(content, "loss")) for content in good]
        loss = sum(x * w for x, w in zip(losses, weights, strict=True)) / sum(weights)
        return _arrays(after), MetricRecord({"loss": loss, "num-examples": sum(weights)})


def _number(content: RecordDict, name: str) -> float:
    value = content.metric_records["metrics"][name]
    assert isinstance(value, (int, float))
    return value


def _arrays(parameters: Vector) -> ArrayRecord:
    return ArrayRecord({KEY: Array(np.ascontiguousarray(parameters, np.float32))})


def strategy_of(session: Session) -> Strategy:
    """Flower's strategy of a session. Sites are few, so that all of them are asked."""
    sites: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}
    if session.dp_noise:  # a mean in which all count alike: how much one can move it is then known
        alike = FedAvg(weighted_by_key=ALIKE, **sites)
        return DifferentialPrivacyServerSideFixedClipping(alike, session.dp_noise, session.dp_clip, session.quorum)
    if session.strategy == "fedadam":
        return FedAdam(eta=0.01, tau=1e-3, **sites)
    if session.strategy == "median":
        return FedMedian(**sites)
    if session.strategy == "trimmed":
        return FedTrimmedAvg(beta=TRIM, **sites)
    if session.strategy == "fedavg":
        return Diloco(Outer(1.0, 0.0), session.public, **sites)
    return Diloco(Outer(session.outer_lr, session.outer_momentum), session.public, **sites)


def memory_of(strategy: Strategy) -> dict[str, np.ndarray]:
    """What a strategy carries from round to round."""
    if isinstance(strategy, Diloco):
        return {} if strategy.outer.velocity is None else {"velocity": strategy.outer.velocity}
    return {name: value[KEY] for name in ADAM if (value := getattr(strategy, name, None))}


def remember(strategy: Strategy, memory: Any) -> None:
    """Gives a strategy back what `memory_of` gave."""
    if isinstance(strategy, Diloco):
        strategy.outer.velocity = memory.get("velocity")
    for name in ADAM:
        if name in memory:
            setattr(strategy, name, {KEY: memory[name]})


def expanded(reply: Message, asked: Message, parameters: Vector, most_tokens: float) -> list[Message]:
    """A site's reply as one of each client's; what is not as agreed is left out, with a line in the log."""
    if reply.has_error():
        logger.warning("a node failed: %s", reply.error.reason)
        return []
    try:
        rows = reply.content.array_records["arrays"]["updates"].numpy()
        metrics = reply.content.metric_records["metrics"]
        tokens, losses = _floats(metrics["tokens"]), _floats(metrics["loss"])
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("a site's reply lacks %s", error)
        return []
    if rows.ndim != 2 or rows.shape[1] != len(parameters) or not len(rows) == len(tokens) == len(losses):
        logger.warning("a site's reply has updates of shape %s", rows.shape)
        return []
    replies = []
    for row, count, loss in zip(rows, tokens, losses, strict=True):
        if not (np.isfinite(row).all() and 0 < count <= most_tokens and np.isfinite(loss)):
            logger.warning("a client's update is left out: %g tokens, loss %g", count, loss)
            continue
        figures = MetricRecord({"num-examples": count, "loss": loss, ALIKE: 1.0})
        replies.append(Message(RecordDict({"arrays": _arrays(row), "metrics": figures}), reply_to=asked))
    return replies


def clients_of(reply: Message) -> int:
    """How many clients a site's reply speaks for; 0 for what is no such reply."""
    try:
        return int(_number(reply.content, "clients"))
    except (KeyError, TypeError, ValueError, AssertionError):
        return 0


def note_supernode(files: Files, number: int, node: int, reply: Message) -> None:
    """Adds a supernode's part of a round to `rounds.jsonl`, as a gateway adds its own; nothing where it failed."""
    try:
        metrics = reply.content.metric_records["metrics"]
        (tokens,), (loss,) = _floats(metrics["tokens"]), _floats(metrics["loss"])
        steps, seconds = _number(reply.content, "steps"), _number(reply.content, "seconds")
    except (KeyError, TypeError, ValueError, AssertionError):
        return
    name = f"supernode {node}"
    device = {
        "member": None,
        "name": name,
        "tokens": int(tokens),
        "steps": int(steps),
        "loss": loss,
        "said": "",
    }
    figures = {"clients": 1, "tokens": int(tokens), "loss": loss, "seconds": seconds, "streamed": False}
    files.note({"round": number, **figures, "devices": [device], "site": name})


def _floats(value: Any) -> list[float]:
    return [float(number) for number in value]


def exchange(
    grid: Grid, make: Callable[[], list[Message]], gateways: set[int], seconds: float
) -> list[tuple[Message, Message]]:
    """Asks all nodes and waits for their replies, in pairs with what they answer.

    A gateway that says nothing is asked again: returns when all that were asked and are still there have answered. A
    supernode is asked once, and waited for `seconds` at most.
    """
    asked: dict[str, Message] = {}
    found: dict[int, tuple[Message, Message]] = {}
    wanted: set[int] = set()
    began = time.monotonic()
    sent, patience = 0.0, AGAIN / 2
    while not gateways & wanted or not wanted <= found.keys():
        if not gateways & wanted or time.monotonic() - sent > patience:
            patience *= 2 if wanted else 1
            messages = make()
            pending = {m.metadata.dst_node_id for m in asked.values()} - gateways  # supernodes at work
            wanted = {m.metadata.dst_node_id for m in messages} | (wanted & found.keys()) | pending
            messages = [m for m in messages if m.metadata.dst_node_id not in found.keys() | pending]
            asked |= dict(zip(grid.push_messages(messages), messages, strict=True))
            sent = time.monotonic()
        for reply in grid.pull_messages(list(asked)):
            question = asked.pop(reply.metadata.reply_to_message_id, None)
            if question is not None and not (reply.has_error() and reply.error.code in AWAY):
                found[question.metadata.dst_node_id] = question, reply
        if time.monotonic() - began > seconds and gateways & wanted <= found.keys():
            break
        time.sleep(POLL)
    return list(found.values())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds that the checkpoint lacks."""
    files = Files(Path(str(context.run_config["folder"])))
    session, held = files.session(), files.checkpoint()
    strategy = strategy_of(session)
    remember(strategy, held.memory)
    parameters = held.parameters
    most_tokens = float(session.local_steps * session.recipe.rows * session.members)
    for number in range(held.round + 1, session.rounds + 1):
        while not (gateways := files.gateway_nodes()) & set(grid.get_node_ids()):
            time.sleep(POLL)
        record = _arrays(parameters)

        def ask(
            attempt: int, number: int = number, record: ArrayRecord = record, gateways: set[int] = gateways
        ) -> list[Message]:
            config = ConfigRecord({"round": number, "attempt": attempt})
            asked = strategy.configure_train(number, record, config, grid)
            # a supernode's change is neither clipped nor compared with those of a gateway's devices
            return [one for one in asked if one.metadata.dst_node_id in gateways or not session.bounded]

        late = session.round_seconds + session.grace + STARTING
        answers, attempt = exchange(grid, partial(ask, 0), gateways, late), 0
        while session.gateways > 1 and sum(clients_of(reply) for _, reply in answers) < session.quorum:
            attempt += 1  # the gateways keep what they have, and wait for more
            answers = exchange(grid, partial(ask, attempt), gateways, late)
        for question, reply in answers:
            if question.metadata.dst_node_id not in gateways:
                note_supernode(files, number, question.metadata.dst_node_id, reply)
        replies = [one for question, reply in answers for one in expanded(reply, question, parameters, most_tokens)]
        arrays, _ = strategy.aggregate_train(number, replies)
        if arrays is None:
            logger.warning("round %d brought nothing", number)
        else:
            parameters = np.asarray(arrays[KEY].numpy(), np.float32)
        files.save(Checkpoint(number, parameters, memory_of(strategy)))
