"""Runs `render_template`, the process that renders chat templates with limits on time and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glgpt.system.limited_process import LimitedProcess, LimitedProcessError


class RenderError(Exception):
    """Raised if a template cannot be rendered, because it raises an error or exceeds a limit."""


class Renderer(LimitedProcess):
    """A process that renders templates."""

    def __init__(self) -> None:
        super().__init__("glgpt.text.untrusted.render_template")

    def render(self, template: str, variables: Sequence[Mapping[str, Any]]) -> list[str]:
        """Renders a template once with each of `variables`, and returns the texts.

        Raises RenderError, with the reason, if rendering fails, or takes too much time or memory.
        """
        try:
            answer = self.ask({"template": template, "variables": list(variables)})
        except LimitedProcessError as error:
            raise RenderError(f"rendering it failed: {error}") from None
        if "texts" not in answer:
            raise RenderError(answer["error"])
        return [str(text) for text in answer["texts"]]

    def __enter__(self) -> Renderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
