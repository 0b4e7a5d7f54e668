"""Defines Flower's ClientApp for a session. It trains rounds in a user's own `flower-supernode`, without a gateway.

The node's configuration names the text to train on. The session's terms and tokenizer are part of the app.
Flower starts a process for each round, so AdamW's moments are stored on disk between rounds.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from glgpt.errors import ArgumentError
from glgpt.federation import rules
from glgpt.federation.member.worker import Asked, Worker, host_folder, ids_of, open_slot
from glgpt.federation.session import Session
from glgpt.text.files import Text

TERMS = "terms.json"  # file in the app that holds the result of `terms_of`
HOW = "start flower-supernode with --node-config 'text=\"/path/to/your.txt\"'"


def terms_of(session: Session, tokenizer: dict[str, str]) -> bytes:
    """Returns what a supernode needs, as JSON: the session's terms, and the tokenizer's files by name."""
    return json.dumps({"session": json.loads(session.model_dump_json()), "tokenizer": tokenizer}).encode()


def client_of(terms: Path) -> ClientApp:
    """Returns the ClientApp for the session in the file `terms`."""
    client = ClientApp()
    client.train()(partial(trained, terms))
    return client


def trained(terms: Path, message: Message, context: Context) -> Message:
    """Trains the requested round until all steps are done or the round's deadline has passed. Returns the reply.

    The reply holds the trained parameters and metrics. Raises ArgumentError if the node's configuration names no text,
    and GlgptError if the text is too short.
    """
    began = time.monotonic()
    held = json.loads(terms.read_text("utf-8"))
    session = Session.model_validate_json(json.dumps(held["session"]))
    if "text" not in context.node_config:
        raise ArgumentError(f"this node's configuration names no text; {HOW}")
    text = Text.of_files([str(context.node_config["text"])])
    device = str(context.node_config.get("device", "auto"))
    number = int(message.content.config_records["config"]["round"])
    before = np.asarray(message.content.array_records["arrays"]["parameters"].numpy(), np.float32)
    rates, seed = session.rates(number), rules.client_seed(session.settings.seed, context.node_id)
    asked = Asked(number, session.first_step(number), tuple(rates), seed, (0, 1))
    path = str(Path(str(context.node_config["text"])).resolve())
    folder = host_folder("supernode", session.id)
    slot = open_slot(folder, f"supernode-{hashlib.sha256(path.encode()).hexdigest()[:16]}")
    slot.keep_key(path)  # any key: without one, `Worker` would not restore the moments of the last round on this text
    worker = Worker(session, ids_of(session, text, lambda: held["tokenizer"], folder), device, slot)
    try:
        late = message.metadata.created_at + session.round_seconds  # by the host's clock; compared with this machine's
        learned = worker.train(asked, before, lambda *_: "stop" if time.time() > late else "on")
    finally:
        worker.close()
    assert learned is not None
    arrays = ArrayRecord({"updates": Array(learned.parameters[None])})
    metrics = MetricRecord({"tokens": [float(learned.tokens)], "loss": [learned.loss]})
    metrics["steps"], metrics["seconds"] = learned.steps, round(time.monotonic() - began, 3)
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
