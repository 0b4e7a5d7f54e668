"""Converts a client's update and the shared parameters to the records and messages that Flower's strategies take."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from glgpt.federation.protocol import Vector

KEY = "parameters"  # name of the array that holds all parameters
ALIKE = "alike"  # metric that is 1 for every client; a strategy that takes it as the weight weights all clients equally


def arrays_of(parameters: Vector) -> ArrayRecord:
    """Returns the parameters as a record for Flower's strategies."""
    return ArrayRecord({KEY: Array(np.ascontiguousarray(parameters, np.float32))})


def client_reply(question: Message, parameters: Vector, tokens: float, loss: float) -> Message:
    """Returns one client's update as a reply to `question`, in the form that Flower's strategies expect."""
    figures = MetricRecord({"num-examples": tokens, "loss": loss, ALIKE: 1.0})
    return Message(RecordDict({"arrays": arrays_of(parameters), "metrics": figures}), reply_to=question)


def number_in(content: RecordDict, name: str) -> float:
    """Returns a metric of a reply. Raises KeyError if it is missing, and AssertionError if it is not one number."""
    value = content.metric_records["metrics"][name]
    assert isinstance(value, (int, float))
    return value
