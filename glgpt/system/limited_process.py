"""Runs untrusted work in a process with limits on time and memory. Requests and answers are lines of JSON.

`LimitedProcess` starts the process, which runs the function `main` of a module; `main` calls `answer_requests`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from glgpt.errors import quoted

resource: Any
try:
    import resource
except ImportError:  # Windows, where only the wall time is limited
    resource = None

MAX_STDERR = 1 << 20  # maximum bytes of the process's stderr, whose last line is reported
# `python -c` first imports from the current folder, which may be untrusted and hold modules such as json.py. Therefore
# the program replaces sys.path with that of the parent process.
_PROGRAM = "import sys, importlib; sys.path[:] = sys.argv[2:]; sys.exit(importlib.import_module(sys.argv[1]).main())"


class LimitedProcessError(Exception):
    """Raised if a request gets no answer; the message is the reason."""


class LimitError(LimitedProcessError):
    """Raised if a request exceeds a limit. `waited` is True for the limit on wall time."""

    def __init__(self, message: str, waited: bool = False) -> None:
        super().__init__(message)
        self.waited = waited


class LimitedProcess:
    """A process that answers requests. If it does not run, for example after a failed request, `ask` starts it."""

    timeout_s = 60.0  # maximum wall time of a request; `answer_requests` limits the CPU time

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._stderr: IO[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Returns the process, and starts it if it does not run; requests may be sent before it is ready."""
        if self._process is None or self._process.poll() is not None:
            # Ctrl-C in a terminal stops a chat's answer. It does not end this process, which has its own POSIX session.
            self.close()
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, self._module, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        return self._process

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request.

        Raises LimitedProcessError if the request exceeds a limit or the process fails.
        """
        try:
            process = self.start()
        except OSError as error:
            self.close()
            raise LimitedProcessError(f"its process cannot start: {quoted(error, 200)}") from None
        assert process.stdin and process.stdout
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        clock = threading.Timer(self.timeout_s, end)
        clock.start()
        answer: dict[str, Any] = {}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or b"{}")
        except (OSError, ValueError):  # the process ended
            pass
        except BaseException:  # an interrupt: the pending answer must not be read as the answer to the next request
            self.close()
            raise
        finally:
            clock.cancel()
        if not answer:
            raise self._failure(process, late.is_set())
        return answer

    def _failure(self, process: subprocess.Popen[bytes], late: bool) -> LimitedProcessError:
        """Ends a process that gave no answer, and returns an error with the reason."""
        process.kill()  # has no effect if the process has ended
        code, last = process.wait(), ""
        if self._stderr:
            self._stderr.seek(0)
            last = self._stderr.read(MAX_STDERR).decode(errors="replace").strip().rpartition("\n")[2]
        self.close()
        if late:
            return LimitError(f"it took more than {self.timeout_s:.0f} s", True)
        if code < 0 or last.startswith("MemoryError"):  # code < 0: ended by a signal, as at the limit on CPU time
            return LimitError("it took too much time or memory")
        return LimitedProcessError(f"its process ended with exit code {code}: {quoted(last, 200)}")

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        files, self._stderr = [self._stderr], None
        if process:
            process.kill()
            process.wait()
            files += [process.stdin, process.stdout]
        for file in files:
            if file:
                with contextlib.suppress(OSError):
                    file.close()

    def __del__(self) -> None:
        self.close()


def answer_requests(answer: Callable[[dict[str, Any]], dict[str, Any]], cpu_s: int, memory: int) -> int:
    """Answers requests until stdin ends; returns 0.

    Each request may take about `cpu_s` seconds of CPU time, and the process may use `memory` bytes of address space. On
    Windows, neither is limited.
    """
    if resource:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_STDERR, MAX_STDERR))
    for line in sys.stdin.buffer:
        if resource:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        sys.stdout.buffer.write(json.dumps(answer(json.loads(line))).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0
