"""Tests the page's Content-Security-Policy: it allows everything that the page does, and blocks injected code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_page import PLAY, QUIET

pytestmark = pytest.mark.slow

Serve = Callable[..., str]
Browse = Callable[..., Any]

LISTEN = """globalThis.violations = [];
addEventListener('securitypolicyviolation', (e) => violations.push(`${e.effectiveDirective} ${e.blockedURI}`));"""
# Injects markup and scripts as a hostile name or token might, and counts the scripts that run.
SLIP_IN = """async () => {
  globalThis.ran = 0;
  const script = document.createElement('script');
  script.textContent = 'ran++';
  const elsewhere = document.createElement('script');
  elsewhere.src = 'data:text/javascript,ran++';
  const box = document.createElement('div');
  box.innerHTML = '<img src="x:" onerror="ran++"><a href="javascript:ran++">a</a><b style="color: red">b</b>';
  document.body.append(script, elsewhere, box);
  box.querySelector('a').click();
  await new Promise((resolve) => setTimeout(resolve, 50)); // Playwright's own call may use eval, but only up to here
  try { (0, eval)('ran++'); } catch {}
  await fetch('http://127.0.0.1:9/').catch(() => {});
  await new Promise((resolve) => setTimeout(resolve, 300));
  return [ran, violations.map((said) => said.split(' ')[0])];
}"""
HOSTILE = '<img src=x onerror="ran=1"><script>ran=1</script>&lt;b&gt;'


def use(page: Any) -> None:
    """Uses everything that needs the policy's permission: workers, styles, pictures, training a tokenizer."""
    page.wait_for_function(
        "document.querySelector('.text-token:not(.text-given)') && !document.querySelector('.text-caret')"
    )
    for title in ("Attention", "Blocks", "Textures", "Passes", "Device", "Text"):
        page.get_by_role("navigation", name="Views").get_by_role("button", name=title, exact=True).click()
        page.wait_for_timeout(100)
    page.get_by_label("Prompt").fill(HOSTILE)
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function(
        "!document.querySelector('.text-caret') && /onerror/.test(document.querySelector('.text-stream').textContent)"
    )
    assert (
        page.locator(".text-stream img, .text-stream script, .text-stream b").count() == 0
    )  # names and tokens stay text
    assert page.evaluate("globalThis.ran") is None
    bpe = {"text": PLAY[:4000], "config": {"preset": "mini", "tokenizer": "bpe:300", **QUIET}, "steps": 1, "seed": 1}
    assert page.evaluate("(options) => glgpt.train(options).then((r) => r.step)", bpe) == 1


def refused(page: Any) -> None:
    assert page.evaluate("violations") == []  # none before the injection
    ran, violations = page.evaluate(SLIP_IN)
    assert ran == 0
    assert {"script-src-elem", "script-src-attr", "style-src-attr", "connect-src", "img-src", "script-src"} <= {
        *violations
    }


def test_a_folder_keeps_its_policy(site: Path, serve: Serve, browse: Browse) -> None:
    page = browse(
        serve(site, plain=True) + "#prompt=To+be&tokens=2",
        LISTEN,
        provokes="Content Security Policy|violates",
        keeps=True,
    )
    page.evaluate("glgpt.ready")
    use(page)
    page.evaluate("navigator.serviceWorker.ready.then(() => 0)")
    refused(page)


@pytest.mark.soak
def test_a_single_file_keeps_its_policy(browse: Browse, single_file: Path) -> None:
    address = single_file.as_uri() + "#prompt=To+be&tokens=2"
    page = browse(address, LISTEN, provokes="Content Security Policy|violates")
    page.evaluate("glgpt.ready")
    use(page)
    refused(page)
