"""Defines a site: the node in Flower's Fleet that represents all clients of a gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from glgpt.federation.rounds.updates import RunOver
from glgpt.system.files import written_whole

# Seconds from a message's date to the date of its reply. A reply's id depends on its date: with the current time as the
# date, a retry would be a second reply.
REPLY_DELAY_S = 1e-3


@dataclass(frozen=True)
class Task:
    """A round that the ServerApp requests from a site."""

    message: bytes  # the message that `Site.answer` replies to; the gateway stores it on disk
    arrays: dict[str, np.ndarray]
    config: dict[str, Any]


class Site:
    """The Flower Fleet node that represents all clients of a gateway.

    The files `key` and `number` store the node's private key and id. `address` is that of SuperLink, Flower's server.
    """

    def __init__(self, address: str, key: Path, number: Path) -> None:
        if key.exists():
            private = bytes_to_private_key(key.read_bytes())
            public = private.public_key()
        else:
            private, public = generate_key_pairs()
            with written_whole(key, private=True) as file:
                file.write(private_key_to_bytes(private))
        self._public = public_key_to_bytes(public)
        self._client = FleetHttpClient.from_server_address(
            address,
            True,
            None,
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        self._node: Node | None = None
        self._number = number

    def connect(self) -> int:
        """Registers the node if it is new, activates it if it is inactive, and returns its id.

        SuperLink refuses to activate a node that it considers active, such as one whose process was just killed. So the
        id is stored in a file, and the node first sends a heartbeat: if the heartbeat succeeds, the node needs no
        activation. Raises httpx.HTTPError if SuperLink cannot be reached.
        """
        if self._number.exists():
            self._node = Node(node_id=int(self._number.read_text("utf-8")))
            with contextlib.suppress(httpx.HTTPStatusError):
                if self.heartbeat():
                    return int(self._node.node_id)
        with contextlib.suppress(httpx.HTTPStatusError):  # raised if SuperLink's database already has the node
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self._node = Node(node_id=self._client.ActivateNode(asked).node_id)
        with written_whole(self._number) as file:
            file.write(str(self._node.node_id).encode())
        return int(self._node.node_id)

    def heartbeat(self) -> bool:
        """Sends a heartbeat; SuperLink expects one every 30 s. Returns True if SuperLink considers the site active."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        return bool(self._client.SendNodeHeartbeat(request).success)

    def pull(self) -> Task | None:
        """Returns the next requested round with its arrays, or None if none is requested. Raises httpx.HTTPError."""
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        proto = response.messages_list[0]
        run_id = proto.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            response.message_object_trees[0],
            make_pull_object_fn_protobuf(self._client.PullObject, self._node, run_id),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run_id),
            return_type=Message,
        )
        content = message.content
        arrays = {name: array.numpy() for name, array in content.array_records["arrays"].items()}
        return Task(proto.SerializeToString(), arrays, dict(content.config_records["config"]))

    def answer(self, task: bytes, arrays: Mapping[str, np.ndarray], metrics: Mapping[str, Any]) -> None:
        """Replies to a task of `pull`. Raises RunOver if the task's run has ended, and httpx.HTTPError.

        SuperLink accepts one reply per task, and the ServerApp waits three minutes for the rest of a partially sent
        reply. If a killed process sent only a part of its reply, a repeated call completes that reply, because the call
        creates an identical one.
        """
        asked = message_from_proto(MessageProto.FromString(task))
        records = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
        content = RecordDict({"arrays": records, "metrics": MetricRecord(dict(metrics))})
        reply = Message(content, reply_to=asked)
        at, ttl = asked.metadata.created_at + REPLY_DELAY_S, asked.metadata.ttl - REPLY_DELAY_S
        reply.metadata.__dict__.update(_created_at=at, _ttl=ttl)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            bare = message_to_proto(remove_content_from_message(reply))
            pushed = self._push(
                PushMessagesRequest(
                    node=self._node, messages_list=[bare], message_object_trees=[tree], clientapp_runtime_list=[0.0]
                )
            )
            run_id, missing = asked.metadata.run_id, set(pushed.objects_to_push)
            if missing:
                push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run_id, pushed.session_id)
                push_objects(objects, push, object_ids_to_push=missing)
                return
            # The reply was accepted in an earlier attempt, and the ServerApp may wait for objects of the reply that a
            # killed process did not send. For an empty session id, SuperLink uses the session id of the first attempt.
            # SuperLink refuses objects that it already has.
            push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run_id, "")
            for one in list(objects):
                with contextlib.suppress(ObjectPushError):
                    push_objects(objects, push, object_ids_to_push={one})

    def _push(self, request: PushMessagesRequest) -> Any:
        try:
            return self._client.PushMessages(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.FORBIDDEN:
                raise RunOver from None
            raise

    def close(self) -> None:
        """Closes the connection. The node stays registered for the next process of this site."""
        self._client.close()
