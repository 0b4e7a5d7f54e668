"""Everything that depends on the internals of Flower (flwr 1.41.0): processes, control calls, the Fleet node.

The rest of the package uses only Flower's public `flwr.app` and `flwr.serverapp`. Flower's Fleet API is young: another
version of flwr may require changes to this file, and to this file only.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import Node
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
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

from glgpt.federation.member.supernode import TERMS
from glgpt.federation.rounds import RunOver
from glgpt.system.files import written_whole

logger = logging.getLogger(__name__)

# Disables what Flower does by default: telemetry, the update check, and `uv sync` at the start of a run.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
APP = """[project]
name = "glgpt-federation"
version = "1.0.0"
description = "Rounds of a glgpt federation"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0,<1.42"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "glgpt"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "app:app"
clientapp = "app:client"

[tool.flwr.app.config]
folder = ""
"""
CODE = b"""from pathlib import Path

from glgpt.federation.member.supernode import TERMS, client_of
from glgpt.federation.server_app import app  # what they do is in the installed glgpt

client = client_of(Path(__file__).parent / TERMS)
"""
LICENSE = b"MIT\n"
ROUND_TABLES = ("object_children", "run_objects", "objects", "message_ins", "message_res")  # of SuperLink's database
MAX_FREE_BYTES = 32 << 20  # unused space that SuperLink's database may take
# Error codes of a reply that mean that a node was offline, not that its app failed
AWAY = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
EARLIEST = 1e-3  # seconds after a message at which its reply is dated; with the current time, each retry would differ


# -- processes ------------------------------------------------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """Returns the environment for Flower's processes: no telemetry, files under `home`, this Python's commands.

    They import nothing from the current folder, which may hold a stranger's files (Python 3.11 and newer).
    """
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    own = {"FLWR_HOME": str(home), "PATH": os.pathsep.join(search), "PYTHONSAFEPATH": "1"}
    return dict(os.environ) | QUIET | own


def superlink_command(port: int, database: Path, secret: Path) -> list[str]:
    """Returns the command for SuperLink, on loopback: its Control API has no authentication and can run code."""
    return [
        sys.executable, "-c", "from flwr.superlink.cli import flower_superlink; flower_superlink()",
        "--insecure", "--host", "127.0.0.1", "--port", str(port), "--database", str(database),
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def shrink_database(database: Path) -> None:
    """Deletes old rounds from the database of a SuperLink that is not running, and frees the disk space.

    Runs and nodes remain, so that supernodes stay registered. The next run requests unfinished rounds again.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # for `trim_database`; set by VACUUM
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ROUND_TABLES:
                if table in tables:
                    connection.execute(f"DELETE FROM {table}")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        logger.warning("%s could not be shrunk: %s", database, error)


def trim_database(database: Path) -> None:
    """Frees the disk space of rounds that SuperLink has deleted, if there is much of it.

    SQLite retains that space, and a write-ahead log as large as a round. Safe to call while SuperLink runs.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
            (page,), (free,) = (connection.execute(f"PRAGMA {x}").fetchone() for x in ("page_size", "freelist_count"))
            log = database.with_name(database.name + "-wal")
            if page * free + (log.stat().st_size if log.exists() else 0) > MAX_FREE_BYTES:
                connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:  # such as "database is locked": the next round tries again
        logger.info("%s could not be trimmed: %s", database, error)


def superexec_command(port: int, secret: Path, serverapp: Path) -> list[str]:
    """Returns the command for SuperExec.

    It starts the ServerApp when a run begins, and writes the ServerApp's process id to `serverapp`.
    """
    return [
        sys.executable, "-c", "from glgpt.federation.flower import superexec; superexec()", str(serverapp),
        "--insecure", "--runtime-api-address", f"127.0.0.1:{port}", "--superexec-auth-secret-file", str(secret),
        "--parent-pid", str(os.getpid()),
    ]  # fmt: skip


def superexec() -> None:
    """Runs SuperExec with everything that a ServerApp imports, and forks each ServerApp from it.

    SuperLink gives a new ServerApp one minute to report. Importing takes 6 s of processor time, which can exceed that
    minute on a busy machine. A fork takes none, and no task is claimed before everything is imported.
    """
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.superlink.cli import flwr_serverapp

    import glgpt.federation.server_app  # noqa: F401, for the ServerApp

    noted = Path(sys.argv.pop(1))

    class Forked:
        """Replaces `subprocess` in Flower's executor."""

        DEVNULL = -3

        @staticmethod
        def Popen(args: list[str], **_: Any) -> None:  # noqa: N802, the name in `subprocess`
            pid = os.fork()
            if pid:
                noted.write_text(str(pid), "utf-8")
                return
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                sys.argv = args
                flwr_serverapp()
            finally:
                os._exit(1)

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a ServerApp that has ended leaves no zombie process
    setattr(subprocess_executor, "subprocess", Forked)  # noqa: B010, mypy expects a module
    flower_superexec()


# -- control --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run of the ServerApp as SuperLink lists it."""

    run_id: int
    status: str  # pending, starting, running or finished:completed|failed|stopped
    details: str


class Control:
    """Starts, lists and stops runs. Raises httpx.HTTPError if SuperLink does not answer."""

    def __init__(self, port: int) -> None:
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", True, None, [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )

    def start(self, folder: Path, terms: bytes) -> int:
        """Starts the ServerApp on a session's folder and returns the run's id. `terms` are for supernodes."""
        files = {"pyproject.toml": APP.encode(), "app.py": CODE, "LICENSE": LICENSE, TERMS: terms}
        content, _ = build_fab_from_files(files)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        config = user_config_to_proto({"folder": str(folder)})
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=config)).run_id)

    def runs(self) -> list[Run]:
        """Returns all runs that SuperLink lists."""
        found = self._client.ListRuns(ListRunsRequest()).run_dict.values()
        return [
            Run(int(run.run_id), ":".join(filter(None, (run.status.status, run.status.sub_status))), run.status.details)
            for run in found
        ]

    def stop(self, run_id: int) -> None:
        """Ends a run."""
        self._client.StopRun(StopRunRequest(run_id=run_id))

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()


# -- a site: one Fleet node -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A round that the ServerApp requests from a site."""

    message: bytes  # the message that `Site.answer` replies to; the gateway stores it on disk
    arrays: dict[str, np.ndarray]
    config: dict[str, Any]


class Site:
    """The Flower Fleet node that represents all clients of a gateway. Its key and node id are stored in files."""

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

        SuperLink refuses to activate a node that it believes is still alive, such as one whose process was just killed.
        The id is therefore stored in a file, and a heartbeat is sent instead. Raises httpx.HTTPError.
        """
        if self._number.exists():
            self._node = Node(node_id=int(self._number.read_text("utf-8")))
            with contextlib.suppress(httpx.HTTPStatusError):
                if self.heartbeat():
                    return int(self._node.node_id)
        with contextlib.suppress(httpx.HTTPStatusError):  # registered already: SuperLink stores nodes in its database
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self._node = Node(node_id=self._client.ActivateNode(asked).node_id)
        with written_whole(self._number) as file:
            file.write(str(self._node.node_id).encode())
        return int(self._node.node_id)

    def heartbeat(self) -> bool:
        """Sends a heartbeat, due every 30 s. Returns True if SuperLink considers the site active."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        return bool(self._client.SendNodeHeartbeat(request).success)

    def pull(self) -> Task | None:
        """Returns the next requested round with its arrays, or None. Raises httpx.HTTPError."""
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
        """Replies to a task of `pull`. Raises RunOver if its run has ended, and httpx.HTTPError.

        The same answer gives the same message, so a retry completes a reply that a killed process left half sent.
        SuperLink accepts one reply per message; a ServerApp waits three minutes for the rest of an incomplete one.
        """
        asked = message_from_proto(MessageProto.FromString(task))
        records = ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
        content = RecordDict({"arrays": records, "metrics": MetricRecord(dict(metrics))})
        reply = Message(content, reply_to=asked)
        at, ttl = asked.metadata.created_at + EARLIEST, asked.metadata.ttl - EARLIEST
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
            # The ServerApp has accepted the message, and may wait for objects that a killed process did not send.
            # Without a session id, SuperLink uses that of the first attempt. It refuses objects that it already has.
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
