"""Implements DiLoCo as a Flower strategy: an outer optimizer uses the clients' mean change as its gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from glgpt.federation.aggregation.updates import KEY, arrays_of, number_in
from glgpt.federation.protocol import Vector
from glgpt.federation.rules import Outer, trimmed_mean, weighted_mean


class Diloco(FedAvg):
    """FedAvg with a Nesterov step towards the mean of the clients' parameters (with `trim`: their trimmed mean)."""

    def __init__(self, outer: Outer, trim: bool, **options: Any) -> None:
        super().__init__(**options)
        self.outer, self.trim = outer, trim
        self.current: Vector = np.zeros(0, np.float32)

    @property
    def velocity(self) -> dict[str, Any] | None:
        """Returns the outer optimizer's velocity, or None before the first step.

        The velocity is the only value of a dictionary, because Flower's strategies store their state in dictionaries.
        """
        return None if self.outer.velocity is None else {KEY: self.outer.velocity}

    @velocity.setter
    def velocity(self, value: dict[str, Any] | None) -> None:
        self.outer.velocity = None if value is None else value[KEY]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configures a round as FedAvg does, and stores the parameters for the outer step."""
        self.current = arrays[KEY].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the parameters after the round, and the round's mean loss and number of tokens as metrics.

        Returns (None, None) if every reply is an error.
        """
        good = [reply.content for reply in replies if not reply.has_error()]
        if not good:
            return None, None
        rows = np.stack([content.array_records["arrays"][KEY].numpy() for content in good])
        weights = [float(number_in(content, "num-examples")) for content in good]
        mean = trimmed_mean(rows) if self.trim else weighted_mean(rows, weights)
        after = self.outer.step(self.current, mean)
        losses = [float(number_in(content, "loss")) for content in good]
        loss = sum(x * w for x, w in zip(losses, weights, strict=True)) / sum(weights)
        return arrays_of(after), MetricRecord({"loss": loss, "num-examples": sum(weights)})
