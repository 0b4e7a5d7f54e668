"""Tests `#selftest` of the page: what its card shows and its report holds, on this browser and on a faulty one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Route

Serve = Callable[..., str]
Browse = Callable[..., Any]

OPS = "#selftest&op=multiply&op=denormals"
DONE = "document.querySelector('[data-part=json], .ui-problem')"
REPORT = "JSON.parse(document.querySelector('[data-part=json] textarea').value)"
CARD = "document.querySelector('[data-view=selftest]').innerText"


def test_the_card_and_the_report_agree(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the self-test needs the model, or its card or report omits what was drawn or the recovered context."""
    page = browse(serve(exported) + OPS)
    page.wait_for_function(DONE)
    report, card = page.evaluate(REPORT), page.evaluate(CARD)
    assert (report["failed"], report["skipped"], report["deterministic"]) == (0, 0, True)
    assert report["passed"] == sum(found["of"] for found in report["formats"].values()) > 0
    assert report["context_loss"].startswith("recovered in ")
    assert report["properties"]["denormals"] in ("kept", "flushed")
    assert "PASS" in card and f"All {report['passed']} checks passed" in card and report["device"] in card
    assert not page.evaluate("'glgpt' in globalThis")
    assert len(json.dumps(report).encode()) <= 20_000
    page.evaluate("location.hash = 'view=text&tokens=1'")  # the model's page, in the same tab
    page.wait_for_function("globalThis.glgpt?.model")


def test_a_wrong_op_is_named(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a device that adds instead of multiplying passes."""
    document = json.loads(gzip.decompress((exported / "selftest.bin").read_bytes()))
    line = next(i for i, text in enumerate(document["lines"]) if "a_at(row, c4) * b_at(row, c4)" in text)
    document["lines"][line] = document["lines"][line].replace(" * b_at", " + b_at")
    wrong = gzip.compress(json.dumps(document).encode())

    def answer(route: Route) -> None:
        route.fulfill(body=wrong, content_type="application/octet-stream")

    page = browse("about:blank")
    page.route("**/selftest.bin", answer)
    page.goto(serve(exported) + "#selftest&op=multiply&op=add")
    page.wait_for_function(DONE)
    report, card = page.evaluate(REPORT), page.evaluate(CARD)
    assert {failure["op"] for failure in report["failures"]} == {"multiply"} and report["passed"]
    assert "FAIL" in card and "multiply in f32" in card and "is allowed" in card


def test_an_unknown_op_is_refused(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(exported) + "#selftest&op=nonsense")
    page.wait_for_function(DONE)
    assert "has no op nonsense" in page.evaluate(CARD)
