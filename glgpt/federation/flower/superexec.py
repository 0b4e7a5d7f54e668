"""Runs Flower's SuperExec, the process that starts a ServerApp for each run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.superlink.cli import flwr_serverapp

import glgpt.federation.server_app  # noqa: F401, for the ServerApp


def superexec() -> None:
    """Runs SuperExec with everything that a ServerApp imports, and forks each ServerApp from it.

    SuperLink gives a new ServerApp one minute to report. Importing takes 6 s of processor time, which can exceed that
    minute on a busy machine. A fork takes none, and no task is claimed before everything is imported.
    """
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
