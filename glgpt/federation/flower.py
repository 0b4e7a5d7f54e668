"""Everything that depends on the insides of Flower (flwr 1.41.0): its processes, its control calls, its Fleet node.

The rest of the package uses Flower's public `flwr.app` and `flwr.serverapp` at most (`server_app.py`). Flower's Fleet
API is young: another version of flwr may need another version of this file, and of this file only.
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

# On unless told otherwise: figures sent to Flower's makers, a look for updates, `uv sync` at a run's start.
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
MAX_FREE_BYTES = 32 << 20  # that SuperLink's database may take and not use
# Errors of a reply that say that a node was away, not that its app failed
AWAY = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
EARLIEST = 1e-3  # seconds after a message at which its reply is dated: the time of writing would make each another one


# -- processes ------------------------------------------------------------------------------------------------------


def environment(home: Path) -> dict[str, str]:
    """The environment of Flower's processes: nothing leaves the host, files under `home`, this Python's commands."""
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return dict(os.environ) | QUIET | {"FLWR_HOME": str(home), "PATH": os.pathsep.join(search)}


def superlink_command(port: int, database: Path, secret: Path) -> list[str]:
    """SuperLink on loopback: its Control API has no authentication, and a caller can have it run code."""
    return [
        sys.executable, "-c", "from flwr.superlink.cli import flower_superlink; flower_superlink()",
        "--insecure", "--host", "127.0.0.1", "--port", str(port), "--database", str(database),
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def shrink_database(database: Path) -> None:
    """Drops what rounds left in the database of a SuperLink that does not run, and returns its space to the disk.

    Runs and nodes stay, so that supernodes are known. What is dropped is asked for again by the next run.
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
        logger.warning("%s stays as large as it is: %s", database, error)


def trim_database(database: Path) -> None:
    """Returns the space of rounds that SuperLink has deleted to the disk, if that is much.

    SQLite keeps it, and a log of writes as large as a round. May be called while SuperLink runs.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
            (page,), (free,) = (connection.execute(f"PRAGMA {x}").fetchone() for x in ("page_size", "freelist_count"))
            log = database.with_name(database.name + "-wal")
            if page * free + (log.stat().st_size if log.exists() else 0) > MAX_FREE_BYTES:
                connection.executescript("PRAGMA incremental_vacuum")  # `execute` would free one page
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:  # such as busy: after the next round, then
        logger.info("%s is not trimmed: %s", database, error)


def superexec_command(port: int, secret: Path, serverapp: Path) -> list[str]:
    """SuperExec, which starts the ServerApp when a run begins, and writes its process id to `serverapp`."""
    return [
        sys.executable, "-c", "from glgpt.federation.flower import superexec; superexec()", str(serverapp),
        "--insecure", "--runtime-api-address", f"127.0.0.1:{port}", "--superexec-auth-secret-file", str(secret),
        "--parent-pid", str(os.getpid()),
    ]  # fmt: skip


def superexec() -> None:
    """SuperExec with everything that a ServerApp imports, from which each ServerApp is forked.

    SuperLink gives a new ServerApp a minute to report. Importing takes 6 s of processor time, which is more than that
    on a machine that is busy; a fork takes none, and no task is claimed before all is imported.
    """
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.superlink.cli import flwr_serverapp

    import glgpt.federation.server_app  # noqa: F401, for the ServerApp

    noted = Path(sys.argv.pop(1))

    class Forked:
        """Stands for `subprocess` in Flower's executor."""

        DEVNULL = -3

        @staticmethod
        def Popen(args: list[str], **_: Any) -> None:  # noqa: N802, its name there
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

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a ServerApp that ended leaves nothing behind
    setattr(subprocess_executor, "subprocess", Forked)  # noqa: B010, mypy knows a module there
    flower_superexec()


# -- control --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run of the ServerApp as SuperLink knows it."""

    run_id: int
    status: str  # pending, starting, running or finished:completed|failed|stopped
    details: str


class Control:
    """Starts, lists and stops runs. Raises httpx.HTTPError where SuperLink does not answer."""

    def __init__(self, port: int) -> None:
        self._client = ControlHttpClient.from_server_address(
            f"127.0.0.1:{port}", True, None, [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )

    def start(self, folder: Path, terms: bytes) -> int:
        """Starts the ServerApp on a session's folder; gives the run's id. `terms` are for supernodes."""
        files = {"pyproject.toml": APP.encode(), "app.py": CODE, "LICENSE": LICENSE, TERMS: terms}
        content, _ = build_fab_from_files(files)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        config = user_config_to_proto({"folder": str(folder)})
        return int(self._client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=config)).run_id)

    def runs(self) -> list[Run]:
        """All runs that SuperLink knows."""
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
    """A round that the ServerApp asks a site for."""

    message: bytes  # what `Site.answer` replies to, to be kept on disk
    arrays: dict[str, np.ndarray]
    config: dict[str, Any]


class Site:
    """One node of Flower's Fleet, which stands for all clients of a gateway. Its key and number are kept in files."""

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
        """Registers the node where it is new, and activates it where it is not active; gives its id.

        SuperLink activates no node that it takes for active, as one is whose process was killed a moment ago: the id is
        kept in a file, and a heartbeat does instead. Raises httpx.HTTPError.
        """
        if self._number.exists():
            self._node = Node(node_id=int(self._number.read_text("utf-8")))
            with contextlib.suppress(httpx.HTTPStatusError):
                if self.heartbeat():
                    return int(self._node.node_id)
        with contextlib.suppress(httpx.HTTPStatusError):  # registered already: SuperLink keeps nodes in its database
            self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        asked = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self._node = Node(node_id=self._client.ActivateNode(asked).node_id)
        with written_whole(self._number) as file:
            file.write(str(self._node.node_id).encode())
        return int(self._node.node_id)

    def heartbeat(self) -> bool:
        """Tells SuperLink that the site is there, due within 30 s; whether SuperLink takes it for active."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        return bool(self._client.SendNodeHeartbeat(request).success)

    def pull(self) -> Task | None:
        """The next round asked for, with its arrays; None: there is none. Raises httpx.HTTPError."""
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
        """Replies to a task of `pull`. Raises RunOver where its run has ended, and httpx.HTTPError.

        The same answer is the same message, so that what a killed process left half sent is completed: SuperLink takes
        one reply to a message, and a ServerApp waits three minutes for the objects of one that is incomplete.
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
            # The ServerApp has taken the message, and may wait for objects that a killed process did not send. Without
            # a session, SuperLink finds that of the first attempt; it refuses an object that is there already.
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
        """Closes the connection; the node stays registered, for the next process of this site."""
        self._client.close()
