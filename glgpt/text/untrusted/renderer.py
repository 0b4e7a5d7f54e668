"""Runs the process that renders chat templates: `render_template`, which has limits on time and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

TIMEOUT_S = 60.0  # wall time of a request; the process itself limits its CPU time
# Without the current folder, which may be a stranger's and hold modules such as json.py
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from glgpt.text.untrusted.render_template import main; sys.exit(main())"
)


class RenderError(Exception):
    """A template cannot be rendered: an error that it raised, or a limit that it exceeded."""


class Renderer:
    """A process that renders templates. It starts at the first request, and again after one that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the process if it does not run, and returns it; the caller need not wait until it is ready."""
        if self._process is None or self._process.poll() is not None:
            # In a separate session: Ctrl-C in a terminal stops an answer, and must not end this process.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._process

    def render(self, template: str, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Renders a template with each of `variables`.

        Raises RenderError with a one-line reason if it fails, or takes too much time or memory.
        """
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
            request = json.dumps({"template": template, "variables": list(variables)})
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or b"{}")
        except (OSError, ValueError):  # the process ended
            pass
        except BaseException:  # an interrupt: the answer that is still to come must not be read as the next one's
            self.close()
            raise
        finally:
            clock.cancel()
        if "texts" not in answer:
            if "error" not in answer:
                self.close()
            waited = f"rendering it took more than {TIMEOUT_S:.0f} s"
            raise RenderError(answer.get("error", waited if late.is_set() else "it took too much time or memory"))
        return [str(text) for text in answer["texts"]]

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

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
