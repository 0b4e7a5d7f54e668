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
    """Runs SuperExec in this process, which has imported what a ServerApp needs, and forks each ServerApp from it.

    A new ServerApp must report to SuperLink within one minute. Its imports take 6 s of processor time, which can be
    more than a minute on a busy machine. A forked ServerApp imports nothing. SuperExec claims a task only after
    all imports, so they do not count for the minute.
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
