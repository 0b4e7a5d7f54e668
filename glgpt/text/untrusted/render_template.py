"""Renders Jinja templates in a sandbox with limits on time and memory.

`glgpt.text.untrusted.renderer` starts this module as a process, because a template is an untrusted program that comes
with a checkpoint. Templates have the same features as in transformers: the same whitespace options, `break` and
`continue`, `{% generation %}`, `tojson`, `raise_exception` and `strftime_now`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from glgpt.system.limited_process import answer_requests

if TYPE_CHECKING:
    from jinja2 import Environment, Template

CPU_S = 3  # maximum seconds of CPU time for one request
MEMORY = 1 << 30  # maximum bytes of address space
MAX_TEXT = 1 << 20  # maximum characters of all texts of a request


def main() -> int:
    """Answers requests until stdin ends; returns the exit code.

    A request has `template` and `variables`, a list; the template is rendered once with each item. The answer has
    `texts`, or `error`.
    """
    compiled = _compiler()
    return answer_requests(lambda asked: _rendered(asked, compiled), CPU_S, MEMORY)


def _rendered(asked: dict[str, Any], compiled: Callable[[str], Template]) -> dict[str, Any]:
    try:
        texts, left = list[str](), MAX_TEXT
        for variables in asked["variables"]:
            text = compiled(asked["template"]).render(variables)
            left -= len(text)
            if left < 0:
                raise ValueError(f"it produces {MAX_TEXT - left:,} characters, more than {MAX_TEXT:,}")
            text.encode()  # raises for half a surrogate pair
            texts.append(text)
        return {"texts": texts}
    except Exception as error:  # a template can raise any error
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        return {"error": f"{kind}{error}"[:1000]}


def _compiler() -> Callable[[str], Template]:
    """Returns a function that compiles a template; it retains the last four compiled templates."""
    environment = _environment()

    @lru_cache(4)
    def compiled(source: str) -> Template:
        return environment.from_string(source)

    return compiled


def _environment() -> Environment:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Ignores the tags of `{% generation %}`, which mark answers for training, and renders what is between them."""

        tags = {"generation"}  # noqa: RUF012, jinja2 declares it for instances

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """Returns the statements up to `{% endgeneration %}`."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: Any) -> NoReturn:
        raise TemplateError(str(message))

    def to_json(value: Any, **layout: Any) -> str:  # jinja2's `tojson` escapes characters of HTML
        return json.dumps(value, **{"ensure_ascii": False} | layout)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
