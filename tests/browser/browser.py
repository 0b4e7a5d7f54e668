"""A Chromium without a window, folders on a loopback server: for tests, `measure.py` and `scripts/pictures.py`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from glgpt.errors import GlgptError
from glgpt.page.serve import application, serving
from glgpt.program.kernel import KERNELS
from glgpt.tuning.kernel_selection import FETCHES

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu-sandbox --use-gl=angle --use-angle=gl-egl --ignore-gpu-blocklist "
    "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--disable-gpu-watchdog "  # which takes the context where a busy machine draws for long
    "--disable-domain-blocking-for-3d-apis --disable-gpu-process-crash-limit "  # which withhold it after some losses
    # Pages of the address bar that nobody sees, each with a renderer in every window; then what Playwright leaves out,
    # whose list this one replaces.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,AimEnabled,"
    "DestroyProfileOnBrowserClose,HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,LensOverlay,MediaRouter,"
    "NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch"
).split()


def find_chromium() -> str:
    """Where Chromium is on this machine. Raises GlgptError where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise GlgptError("no Chromium on this machine: install it (Debian, Ubuntu: apt install chromium)")
    return found


# What a page is at: for whoever reads of a wait that did not end.
STATE = """() => {
  const session = window.glgpt?.training?.session;
  const {status, doing, problem} = session ?? {};
  const training = session && {status, doing, problem, step: session.step};
  const said = [...document.querySelectorAll('[role=alert], [role=status]')].filter((e) => e.checkVisibility())
    .map((e) => e.innerText).filter(Boolean);
  return JSON.stringify({training, said, text: document.body.innerText.slice(0, 2000)});
}"""


def wait_without_eval(page: Any) -> Any:
    """The page with another `wait_for_function`: Playwright's evals in the page, which its policy forbids."""

    def wait_for_function(expression: str, timeout: float = 90_000, polling: float = 50) -> SimpleNamespace:
        end = time.monotonic() + timeout / 1000
        asked = f"({expression})()" if expression.lstrip().startswith("()") else expression
        while not page.evaluate(f"Boolean({asked})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} did not come true within {timeout:.0f} ms. {page.evaluate(STATE)}")
            page.wait_for_timeout(polling)
        return SimpleNamespace(json_value=lambda: page.evaluate(asked))

    page.wait_for_function = wait_for_function
    return page


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, served as `glgpt serve` does until the block ends."""
    with serving(application(folder)) as address:
        yield address


def remembering(measured: str) -> str:
    """A script with which a page finds this JSON where it keeps what it measured of the device."""
    return f"""
const get = Storage.prototype.getItem;
Storage.prototype.getItem = function (key) {{
  return get.call(this, key) ?? (key.startsWith("glgpt probe ") ? {json.dumps(measured)} : null);
}};"""


def preferring(rows: str) -> str:
    """The same for a device that is faster with these columns of one-row products, `strided` or `contiguous`."""
    names = {"strided": 9.0, "contiguous": 9.0, rows: 1.0}
    names |= {label: 1.0 for kernel in KERNELS for label in (kernel, f"{kernel}-contiguous")}
    return remembering(json.dumps({f"{name} {fetch}": ms for name, ms in names.items() for fetch in FETCHES}))
