"""Starts and stops runs of the ServerApp through the Control API of SuperLink, Flower's server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from glgpt.federation.member.supernode import TERMS

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
        """Starts a run of the ServerApp on a session's folder and returns the run's id.

        `terms` becomes a file of the app, which supernodes receive.
        """
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
