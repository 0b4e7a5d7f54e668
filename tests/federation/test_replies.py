"""Tests that a gateway's messages match the definitions in `replies`, from which the page's types are generated."""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason="make test-federate has what this needs")
pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

from helpers.federation_peer import Peer  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402
from typing_extensions import get_type_hints  # noqa: E402

from glgpt.federation import protocol, replies  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def definition(kind: str) -> Any:
    """Returns the definition of the messages with this `type`."""
    return next(one for one in get_args(replies.GatewayMessage) if kind in get_args(get_type_hints(one)["type"]))


def test_messages_and_answers_are_as_defined(served):
    host = served(rounds=2, quorum=1)
    member, boss = host.gateway.invitations.create(), host.gateway.invitations.create(kind="host")
    peer = Peer(host, member)
    found = [peer.next("welcome"), round_ := peer.next("round")]
    found += [peer.train(round_, round_["parameters"] + np.float32(0.5)), peer.next("figures"), peer.next("state")]
    for message in found:
        message.pop("parameters", None)  # only `Peer` adds this field
        defined = definition(message["type"])
        assert set(message) <= set(get_type_hints(defined)), message["type"]
        TypeAdapter(defined).validate_json(json.dumps(message))
        protocol.parsed_from_host(json.dumps(message))  # a desktop client accepts it too

    def get(path: str, token: str) -> Any:
        return httpx.get(host.address + path, headers={"Authorization": f"Bearer {token}"}, trust_env=False).json()

    TypeAdapter(replies.Terms).validate_python(get("v1/session", member))
    status = get("v1/status", boss)
    TypeAdapter(replies.Status).validate_python(status)
    assert set(status) <= set(get_type_hints(replies.Status))
    assert set(status["members"][0]) == set(get_type_hints(replies.MemberStatus))
    TypeAdapter(list[replies.Invitation]).validate_python(get("v1/invitations", boss)["invitations"])
