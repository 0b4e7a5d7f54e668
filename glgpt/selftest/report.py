"""Runs the self-test and writes its report: a table for the terminal, and JSON of at most 20 KB for an issue."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from glgpt import __version__
from glgpt.errors import ArgumentError
from glgpt.selftest.draw import Result, draw_all, groups
from glgpt.selftest.speed import measure, speed_json
from glgpt.selftest.suite import SCHEMA, Case, cases, read_document, shortened, sources
from glgpt.tuning.kernel_selection import DeviceSettings

MAX_FAILURES = 40  # maximum failures that a report lists
MAX_TEXT = 240  # maximum characters of the description of a failure
Json = dict[str, Any]


def document() -> Json:
    """Returns the recorded cases, the programs to time, and `sources`: the files of `glsl/` to which shaders refer.

    `page.output.selftest` converts this document to the one that the web page loads.
    """
    found = read_document()
    speed, shaders = speed_json()
    shaders = found["shaders"] | {key: shortened(text) for key, text in shaders.items()}
    return found | {"speed": speed, "shaders": shaders, "sources": sources(shaders)}


def run(
    device: str | int = "auto",
    ops: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    suite: Json | None = None,
) -> Json:
    """Runs the self-test on a device and returns its report.

    If `ops` are given, runs only the cases of these ops, and does not measure the speed.

    Raises GlgptError if the device does not open, or if the suite has no case of one of `ops`.
    """
    begun = time.perf_counter()
    suite = suite or document()
    opened, choice = DeviceSettings(device=device).open()
    results = draw_all(opened, choice.options, _chosen(cases(suite), ops), progress)
    about = {
        "schema": SCHEMA,
        "where": "desktop",
        "glgpt": __version__,
        "device": opened.renderer,
        "driver": opened.version,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "limits": asdict(opened.limits),
        "options": asdict(choice.options),
    }
    speed = {} if ops else measure(opened, choice.options, suite)
    return about | summary(results) | {"speed": speed, "seconds": round(time.perf_counter() - begun, 1)}


def _chosen(found: list[Case], ops: Sequence[str]) -> list[Case]:
    known = dict.fromkeys(case.op for case in found)
    for op in ops:
        if op not in known:
            raise ArgumentError(f"the self-test has no op {op!r}; it has {', '.join(known)}")
    return [case for case in found if not ops or case.op in ops]


def summary(results: list[Result]) -> Json:
    """Returns the counts of results, the failures, the device's properties, and the times of the first draws."""
    tests = [result for result in results if not result.case.property]
    failed = [result for result in tests if result.status == "failed"]
    return {
        "passed": sum(result.status == "passed" for result in tests),
        "failed": len(failed),
        "skipped": sum(result.status == "skipped" for result in tests),
        "formats": {name: _format(found) for name, found in groups(tests)},
        "failures": [_failure(result) for result in failed[:MAX_FAILURES]],
        "deterministic": all(result.same for result in tests),
        "properties": {
            r.case.property: "kept" if r.status == "passed" else "flushed" for r in results if r.case.property
        },
        "first_draw": {
            "shaders": len({shader for result in results for shader in result.case.program.shaders}),
            "ms": round(sum(result.first_ms for result in results)),
            "slowest": _slowest(results),
        },
    }


def _format(found: list[Result]) -> Json:
    """Returns how many cases of a format passed, and the case with the largest ratio of error to allowed error."""
    drawn = [result for result in found if result.status != "skipped"]
    closest: Json | None = None
    if drawn:
        nearest = max(drawn, key=lambda result: result.excess)
        closest = {"op": nearest.case.op, "share": _rounded(nearest.excess)}
    passed = sum(result.status == "passed" for result in drawn)
    return {"passed": passed, "of": len(found), "nearest": closest}


def _failure(result: Result) -> Json:
    return {
        "op": result.case.op,
        "format": result.case.format,
        "shape": result.case.shape,
        "error": _rounded(result.error),
        "allowed": _rounded(result.allowed),
        "problem": result.problem[:MAX_TEXT],
    }


def _slowest(results: list[Result]) -> Json | None:
    if not results:
        return None
    slowest = max(results, key=lambda result: result.first_ms)
    return {"op": slowest.case.op, "format": slowest.case.format, "ms": round(slowest.first_ms)}


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def render(report: Json) -> str:
    """Formats a report as text."""
    limits, first = report["limits"], report["first_draw"]
    lines = [
        f"device       {report['device']}",
        f"driver       {report['driver']}",
        f"limits       textures {limits['max_texture_size']}, layers {limits['max_layers']}, "
        f"targets {limits['max_draw_buffers']}",
        "",
        "format             passed   nearest to its limit",
    ]
    for name, found in report["formats"].items():
        nearest = found["nearest"]
        how = f"{nearest['op']} ({_percent(nearest['share'])})" if nearest else "not drawn"
        lines.append(f"{name:<17}{found['passed']:>4} / {found['of']:<4}{how}")
    lines += [
        "",
        f"two draws    {'equal bits' if report['deterministic'] else 'DIFFERENT BITS'}",
        *(f"{name:<12} {value}" for name, value in report["properties"].items()),
        f"compiling    {first['ms']} ms with the first draws, {first['shaders']} shaders",
        *(f"{name:<16} {value}" for name, value in report["speed"].items()),
        "",
    ]
    for failure in report["failures"]:
        lines += [
            f"FAILED  {failure['op']} in {failure['format']} ({failure['shape']})",
            f"        {failure['problem']}",
        ]
    skipped = f", {report['skipped']} skipped" if report["skipped"] else ""
    lines += [
        f"{'PASS' if not report['failed'] else 'FAIL'}: {report['passed']} passed, {report['failed']} failed{skipped}, "
        f"in {report['seconds']} s.",
        "Nothing is sent. To report this device, open an issue with the output of: glgpt selftest --json",
    ]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}% of the allowed error"
