"""Opens exported pages in a headless Chromium for the tests, `measure.py` and `scripts/pictures.py`."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.page.serve import application, serving
from glgpt.program.kernel import KERNELS
from glgpt.tuning.kernel_selection import FETCHES

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu-sandbox --use-gl=angle --use-angle=gl-egl --ignore-gpu-blocklist "
    "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync "
    "--disable-gpu-watchdog "  # the watchdog drops the WebGL context if a draw is slow on a busy machine
    # Without these flags, Chromium blocks WebGL after several lost contexts.
    "--disable-domain-blocking-for-3d-apis --disable-gpu-process-crash-limit "
    # The first line disables invisible pages of the address bar, which have a renderer in every window. The second line
    # disables the spare renderer of every profile. The others are Playwright's list, since this option replaces it.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup,AimEnabled,"
    "SpareRendererForSitePerProcess,"
    "DestroyProfileOnBrowserClose,HttpsFirstBalancedModeAutoEnable,HttpsUpgrades,LensOverlay,MediaRouter,"
    "NetworkTimeServiceQuerying,OptimizationHints,PaintHolding,PreconnectToSearch"
).split()

# Compositing pages with llvmpipe would take a fifth of the tests' processor time. The flag leaves WebGL unchanged.
TEST_FLAGS = [*FLAGS, "--disable-gpu-compositing"]


def find_chromium() -> str:
    """Returns the path of Chromium on this machine. Raises GlgptError if there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise GlgptError("no Chromium on this machine: install it (Debian, Ubuntu: apt install chromium)")
    return found


# Describes the state of a page, for the error message of a wait that timed out.
STATE = """() => {
  const session = window.glgpt?.training?.session;
  const {status, doing, problem} = session ?? {};
  const training = session && {status, doing, problem, step: session.step};
  const said = [...document.querySelectorAll('[role=alert], [role=status]')].filter((e) => e.checkVisibility())
    .map((e) => e.innerText).filter(Boolean);
  return JSON.stringify({training, said, text: document.body.innerText.slice(0, 2000)});
}"""


def wait_without_eval(page: Any) -> Any:
    """Replaces the page's `wait_for_function`. That of Playwright calls eval, which the page's policy forbids.

    The wait continues while the document has no body, as after a reload.
    """

    def wait_for_function(expression: str, timeout: float = 90_000, polling: float = 50) -> SimpleNamespace:
        end = time.monotonic() + timeout / 1000
        asked = f"({expression})()" if expression.lstrip().startswith("()") else expression
        while not page.evaluate(f"Boolean(document.body && ({asked}))"):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} did not come true within {timeout:.0f} ms. {page.evaluate(STATE)}")
            page.wait_for_timeout(polling)
        return SimpleNamespace(json_value=lambda: page.evaluate(asked))

    page.wait_for_function = wait_for_function
    return page


# Opens a link as if it were pasted into the address bar; resolves when the page has read it.
FOLLOW = """(link) => new Promise((read) => {
  addEventListener('popstate', () => setTimeout(read), {once: true});
  location.hash = link;
})"""
WRITTEN = (
    "!glgpt.model.interventions.parts.length && !document.querySelector('.text-caret') && "
    "document.querySelectorAll('.text-token:not(.text-given)').length"
)


@contextmanager
def writing(page: Any, link: str, tokens: int) -> Iterator[Any]:
    """Opens a link in a page and yields the page when its text has `tokens` generated tokens (at least 2)."""
    page.evaluate(FOLLOW, link)
    page.wait_for_function(f"{WRITTEN} === {tokens}")
    yield page
    page.evaluate(FOLLOW, "prompt=-&tokens=1")  # otherwise, opening the same link next would not generate a text
    page.wait_for_function(f"{WRITTEN} === 1")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a folder as `glgpt serve` does until the block ends; yields its address."""
    with serving(application(folder)) as address:
        yield address


def preferring(rows: str, kernels: bool = True) -> str:
    """Returns a script that gives a page stored measurements of its kernels, as on a second visit.

    The measurements always lead to the same choice: `rows` ("strided" or "contiguous" columns) for products of one
    row, the kernel 8x4 for products of many rows, and textureLod for both, as usual on llvmpipe. Without `kernels`,
    measurements of products of many rows are missing.
    """
    names = {"strided": 9.0, "contiguous": 9.0, rows: 1.0}
    if kernels:
        names |= {f"{kernel}{end}": 1.0 + (kernel != "8x4") for kernel in KERNELS for end in ("", "-contiguous")}
    times = {f"{name} {fetch}": ms * (1 + (fetch == "texelFetch")) for name, ms in names.items() for fetch in FETCHES}
    return f"""
const get = Storage.prototype.getItem;
Storage.prototype.getItem = function (key) {{
  return get.call(this, key) ?? (key.startsWith("glgpt probe ") ? {json.dumps(json.dumps(times))} : null);
}};"""


MEASURED = preferring("contiguous")
# Returns a Float32Array as base64, since Playwright takes microseconds for each number of a list.
PACK = """({buffer, byteOffset, byteLength}) => {
  const bytes = new Uint8Array(buffer, byteOffset, byteLength), parts = [];
  for (let i = 0; i < bytes.length; i += 8192) parts.push(String.fromCharCode(...bytes.subarray(i, i + 8192)));
  return btoa(parts.join(''));
}"""


def logits(page: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    """Returns the result of `glgpt.logits`, with all rows in one array."""
    return _unpack(page.evaluate(f"(ids) => glgpt.logits(ids).then({PACK})", ids))


def activation(page: Any, name: str, ids: list[int]) -> np.ndarray[Any, Any]:
    """Returns the result of `glgpt.activation`, in its shape."""
    script = f"([name, ids]) => glgpt.activation(name, ids).then(({{shape, data}}) => [shape, ({PACK})(data)])"
    shape, data = page.evaluate(script, [name, ids])
    values: np.ndarray[Any, Any] = _unpack(data).reshape(shape)
    return values


def _unpack(data: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(data), "<f4")


# JavaScript that hooks the method of `gl` whose name is `call`, and loses the WebGL context right before its `count`-th
# call. Calls count while `player` plays an entry whose name begins with `entry`, or at any time if `entry` is "".
# `delete gl[call]` removes the hook.
LOSE_AT = """
      const issue = player.issue.bind(player), original = gl[call].bind(gl);
      const context = gl.getExtension('WEBGL_lose_context');
      let playing = '', calls = 0;
      player.issue = (name, ...rest) => { playing = name; issue(name, ...rest); playing = ''; };
      gl[call] = (...args) => {
        if (playing.startsWith(entry) && ++calls === count) {
          context.loseContext();
          setTimeout(() => context.restoreContext(), 100);
        }
        return original(...args);
      };"""
