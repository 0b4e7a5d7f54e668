"""Renders a Jinja template in a sandbox with limits on time and memory: reads JSON from stdin, writes text to stdout.

`glgpt.text.untrusted.chat` starts it as a process, since a template is a program that comes with a checkpoint.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn

CPU_S = 3
MEMORY = 1 << 30  # bytes of address space
MAX_TEXT = 1 << 20  # characters


def main() -> int:
    """Renders the template on stdin; returns the exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: Any) -> NoReturn:
        raise TemplateError(str(message))

    asked = json.load(sys.stdin)
    # The options of transformers: blocks leave no blank lines, and loops may break.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        text = environment.from_string(asked["template"]).render(asked["variables"])
    except Exception as error:  # a template can raise any error
        print(f"{type(error).__name__}: {error}"[:1000], file=sys.stderr)
        return 1
    if len(text) > MAX_TEXT:
        print(f"it produces {len(text):,} characters, more than {MAX_TEXT:,}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(text.encode("utf-8"))
    return 0
