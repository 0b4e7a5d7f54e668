"""Builds the commands that start Flower's processes, and keeps SuperLink's database small."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

# Disables what Flower does by default: telemetry, the update check, and `uv sync` at the start of a run.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
# Tables of SuperLink's database that hold rounds
ROUND_TABLES = ("object_children", "run_objects", "objects", "message_ins", "message_res")
MAX_FREE_BYTES = 32 << 20  # maximum bytes of unused space and write-ahead log of SuperLink's database


def environment(home: Path) -> dict[str, str]:
    """Returns environment variables for Flower: no telemetry, files in `home`, the folder of this Python in PATH.

    With Python 3.11 or newer, the processes import nothing from the current folder, which may hold a stranger's files.
    """
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    own = {"FLWR_HOME": str(home), "PATH": os.pathsep.join(search), "PYTHONSAFEPATH": "1"}
    return dict(os.environ) | QUIET | own


def superlink_command(port: int, database: Path, secret: Path) -> list[str]:
    """Returns the command for SuperLink, which listens only on loopback: any process that can connect can run code."""
    return [
        sys.executable, "-c", "from flwr.superlink.cli import flower_superlink; flower_superlink()",
        "--insecure", "--host", "127.0.0.1", "--port", str(port), "--database", str(database),
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def shrink_database(database: Path) -> None:
    """Deletes all rounds from the database of a SuperLink that is not running, and frees the disk space.

    The database keeps its runs and nodes, so that supernodes stay registered. A round that was not finished is lost;
    when the ServerApp runs again, it starts from the checkpoint and repeats that round.
    """
    try:
        with contextlib.closing(sqlite3.connect(database, timeout=10, isolation_level=None)) as connection:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # needed by `trim_database`; VACUUM applies it
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            for table in ROUND_TABLES:
                if table in tables:
                    connection.execute(f"DELETE FROM {table}")
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        logger.warning("%s could not be shrunk: %s", database, error)


def trim_database(database: Path) -> None:
    """Shrinks SuperLink's database if its unused space and write-ahead log together exceed `MAX_FREE_BYTES`.

    SuperLink deletes old rounds, but SQLite does not free their disk space, and its write-ahead log grows to the size
    of a round. Safe to call while SuperLink runs.
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

    SuperExec starts the ServerApp when a run begins, and writes the ServerApp's process id to the file `serverapp`.
    """
    return [
        sys.executable, "-c", "from glgpt.federation.flower.superexec import superexec; superexec()", str(serverapp),
        "--insecure", "--runtime-api-address", f"127.0.0.1:{port}", "--superexec-auth-secret-file", str(secret),
        "--parent-pid", str(os.getpid()),
    ]  # fmt: skip
