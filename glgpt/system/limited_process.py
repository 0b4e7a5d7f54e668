"""Runs untrusted work in a process with limits on time and memory: a line of JSON in, a line of JSON out.

`LimitedProcess` starts a module whose `main` calls `answer_requests`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

resource: Any
try:
    import resource
except ImportError:  # Windows, where only the wall time is limited
    resource = None

TIMEOUT_S = 60.0  # wall time of a request; the process itself limits its CPU time
# Without the current folder, which may be a stranger's and hold modules such as json.py
_PROGRAM = "import sys, importlib; sys.path[:] = sys.argv[2:]; sys.exit(importlib.import_module(sys.argv[1]).main())"


class LimitedProcessError(Exception):
    """A request exceeded a limit; the message says which."""


class LimitedProcess:
    """A process that answers requests. It starts at the first one, and again after one that ended it."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process if it does not run, and returns it; the caller need not wait until it is ready."""
        if self._process is None or self._process.poll() is not None:
            # In a separate session: Ctrl-C in a terminal stops an answer, and must not end this process.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, self._module, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request. Raises LimitedProcessError if it takes too much time or memory."""
        process = self.start()
        assert process.stdin and process.stdout
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(TIMEOUT_S, end)
        clock.start()
        answer: dict[str, Any] = {}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or b"{}")
        except (OSError, ValueError):  # the process ended
            pass
        except BaseException:  # an interrupt: the answer that is still to come must not be read as the next one's
            self.close()
            raise
        finally:
            clock.cancel()
        if not answer:
            self.close()
            waited = f"it took more than {TIMEOUT_S:.0f} s"
            raise LimitedProcessError(waited if late.is_set() else "it took too much time or memory")
        return answer

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def __del__(self) -> None:
        self.close()


def answer_requests(answer: Callable[[dict[str, Any]], dict[str, Any]], cpu_s: int, memory: int) -> int:
    """Answers requests until stdin ends, with `cpu_s` seconds for each and `memory` bytes; returns the exit code."""
    if resource:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for line in sys.stdin.buffer:
        if resource:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        sys.stdout.buffer.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0
