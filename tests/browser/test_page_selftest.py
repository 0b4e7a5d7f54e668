"""Tests the page's self-test (`#selftest`): what it shows (the card) and its JSON report, also with faulty drivers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Route
from test_page_failures import LOADING, ONE_TARGET
from test_page_navigation import RULES, SMALL

from glgpt.system.files import data_path

Serve = Callable[..., str]
Browse = Callable[..., Any]

OPS = "#selftest&op=multiply&op=denormals"
DONE = "document.querySelector('[data-part=json], .ui-problem')"
REPORT = "JSON.parse(document.querySelector('[data-part=json] textarea').value)"
CARD = "document.querySelector('[data-view=selftest]').innerText"


def suite_of(exported: Path) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress((exported / "selftest.bin").read_bytes())))


def serve_suite(page: Any, suite: dict[str, Any]) -> None:
    """Makes a page read this suite."""
    packed = gzip.compress(json.dumps(suite).encode())

    def answer(route: Route) -> None:
        route.fulfill(body=packed, content_type="application/octet-stream")

    page.route("**/selftest.bin", answer)


def test_the_card_and_the_report_agree(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the self-test needs the model, or its card or report omits a drawn case or the recovered context."""
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
    with page.expect_event("load"):  # like the button, opens the model's page in the same tab
        page.evaluate("location.hash = 'view=text&tokens=1'")
    page.evaluate("glgpt.ready")
    with page.expect_event("load"):  # like the link in the Device tab, opens the self-test
        page.evaluate(f"location.hash = '{OPS}'")
    page.wait_for_selector("[data-view=selftest]")


def test_a_whole_run_reports_all_parts_and_can_be_read(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the report or the card of a run without a choice of ops lacks a part, or axe finds a fault.

    The suite has only two ops, so that the test is fast.
    """
    suite = suite_of(exported)
    suite["cases"] = [case for case in suite["cases"] if case["op"] in ("multiply", "few_rows")]
    page = browse("about:blank")
    serve_suite(page, suite)
    page.goto(serve(exported) + "#selftest")
    page.wait_for_function(DONE)
    report, card = page.evaluate(REPORT), page.evaluate(CARD)
    assert (report["failed"], report["passed"], report["deterministic"]) == (0, len(suite["cases"]), True)
    assert {"f32", "f16", "q8", "q4"} <= report["formats"].keys() and min(report["limits"].values()) >= 4
    assert report["first_draw"]["ms"] >= report["first_draw"]["slowest"]["ms"] > 0
    assert report["speed"].keys() == {"product GFLOP/s", "token ms"} and min(report["speed"].values()) > 0
    assert "A product of 64 rows" in card and "A token of a small model" in card and "Compiling" in card
    page.evaluate(data_path("viewer/node_modules/axe-core/axe.min.js").read_text(encoding="utf-8") + "; 0")
    for width in (1366, 390):
        page.set_viewport_size({"width": width, "height": 844})
        found = page.evaluate(f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((r) => r.violations)")
        assert [(v["id"], v["nodes"][0]["html"][:80]) for v in found] + page.evaluate(SMALL) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_device_on_which_no_model_runs_fails(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a device with one draw target skips cases that every model needs.

    In contrast, a device with four targets may skip cases that need eight.
    """
    page = browse(serve(exported) + "#selftest&op=embed_tokens&op=multiply", ONE_TARGET)
    page.wait_for_function(DONE)
    report, card = page.evaluate(REPORT), page.evaluate(CARD)
    assert report["failed"] and not report["skipped"] and "this device has 1" in card and "FAIL" in card


def test_a_context_lost_while_it_draws_is_said(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if, after the context is lost, the self-test waits forever or reports a failed op."""
    lost = LOADING.replace("CALL", "drawArrays").replace("COUNT", "11")
    page = browse(serve(exported) + "#selftest&op=multiply&op=add&op=act", lost)
    page.wait_for_function(DONE)
    assert "lost the graphics context during the test. Reload the page" in page.evaluate(CARD)
    page.get_by_role("button", name="Run again").click()
    page.wait_for_function("document.querySelector('[data-part=json]')")
    assert page.evaluate(REPORT)["failed"] == 0


def test_a_wrong_op_is_named(exported: Path, serve: Serve, browse: Browse) -> None:
    """Fails if the self-test accepts a device that adds instead of multiplying, or omits that denormals are kept."""
    document = suite_of(exported)
    line = next(i for i, text in enumerate(document["lines"]) if "a_at(row, c4) * b_at(row, c4)" in text)
    document["lines"][line] = document["lines"][line].replace(" * b_at", " + b_at")
    denormals = next(case for case in document["cases"] if case["op"] == "denormals")
    denormals["outputs"][0][4] = 1.0  # a tolerance that accepts any result
    page = browse("about:blank")
    serve_suite(page, document)
    page.goto(serve(exported) + "#selftest&op=multiply&op=add&op=denormals")
    page.wait_for_function(DONE)
    report, card = page.evaluate(REPORT), page.evaluate(CARD)
    assert {failure["op"] for failure in report["failures"]} == {"multiply"} and report["passed"]
    assert "FAIL" in card and "multiply in f32" in card and "is allowed" in card
    assert report["properties"] == {"denormals": "kept"}


def test_an_unknown_op_is_refused(exported: Path, serve: Serve, browse: Browse) -> None:
    page = browse(serve(exported) + "#selftest&op=nonsense")
    page.wait_for_function(DONE)
    assert "has no op nonsense" in page.evaluate(CARD)
