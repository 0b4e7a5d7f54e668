"""Tests the self-test: its suite is current and covers every shader, and its report shows faults of a driver."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import numpy as np
import pytest
from helpers.command_line import refused
from selftest.record_suite import document

from glgpt.cli import main
from glgpt.program.recorder import shader_files
from glgpt.selftest import draw, report
from glgpt.selftest.draw import Result
from glgpt.selftest.suite import cases, read_document

OPS = ["multiply", "norm"]
# Expressions that `storing` stores instead of the float v, to emulate drivers
ROUNDED = "uintBitsToFloat((floatBitsToUint(v) + 0x1000u) & 0xffffe000u)"  # ten bits of the fraction, as mediump has
FLUSHED = "(v * vec4(greaterThan(abs(v), vec4(1.2e-38))))"


@pytest.fixture
def suite() -> dict[str, Any]:
    return copy.deepcopy(report.document())


def storing(suite: dict[str, Any], value: str) -> dict[str, Any]:
    """Returns the suite with shaders that store the expression `value` instead of v."""
    text = suite["sources"]["f32.glsl"]
    suite["sources"]["f32.glsl"] = text.replace("FROM_FLOAT(v)", f"FROM_FLOAT({value})")
    assert suite["sources"]["f32.glsl"] != text
    return suite


def test_the_suite_is_current() -> None:
    """Fails after a change of passes or cases, until `python tests/selftest/record_suite.py` records them again."""
    stored, found = read_document(), json.loads(json.dumps(document()))
    arrays = stored.pop("arrays"), found.pop("arrays")
    assert stored == found
    for (kind, text), (other, again) in zip(*arrays, strict=True):
        assert kind == other
        if kind == "f":  # another machine's float64 may differ in the last bits
            x, y = (np.frombuffer(base64.b64decode(each), np.float32) for each in (text, again))
            assert np.allclose(x, y, 1e-4, 1e-5, equal_nan=True)
        else:
            assert text == again


def test_every_shader_has_a_case() -> None:
    drawn = {part for key in document()["shaders"] for part in key.rpartition("-")[0].split("+")}
    shaders = {path.stem for path in shader_files().values() if path.suffix == ".frag" and path.parent.name != "bench"}
    assert shaders <= drawn


def test_a_correct_device_passes(suite: dict[str, Any]) -> None:
    found = report.run("software", OPS, suite=suite)
    assert (found["failed"], found["skipped"], found["deterministic"]) == (0, 0, True)
    assert found["passed"] == sum(case["op"] in OPS for case in suite["cases"])


def test_a_wrong_op_is_named(suite: dict[str, Any]) -> None:
    """Fails if the self-test accepts a shader that adds instead of multiplying, or the report names another op."""
    text = suite["sources"]["multiply.frag"]
    suite["sources"]["multiply.frag"] = text.replace("a_at(row, c4) * b_at", "a_at(row, c4) + b_at")
    found = report.run("software", OPS, suite=suite)
    assert {failure["op"] for failure in found["failures"]} == {"multiply"}
    failure = found["failures"][0]
    assert failure["error"] > failure["allowed"] and "is off by" in failure["problem"] and failure["shape"]
    assert "FAILED  multiply in f32" in report.render(found)


def test_few_bits_of_precision_fail(suite: dict[str, Any]) -> None:
    found = report.run("software", OPS, suite=storing(suite, ROUNDED))
    assert {"norm"} <= {failure["op"] for failure in found["failures"]}
    assert found["formats"]["f32"]["nearest"]["share"] > 10


def test_flushed_denormals_are_reported_and_do_not_fail(suite: dict[str, Any]) -> None:
    """Fails if the report does not distinguish a driver that flushes denormals from a driver that does not."""
    found = report.run("software", ["denormals"], suite=storing(copy.deepcopy(suite), FLUSHED))
    assert (found["failed"], found["properties"]) == (0, {"denormals": "flushed"})
    case = next(case for case in suite["cases"] if case["op"] == "denormals")
    case["outputs"][0][4] = 1.0  # a tolerance that accepts any result
    assert report.run("software", ["denormals"], suite=suite)["properties"] == {"denormals": "kept"}


def test_a_shader_that_does_not_compile_is_a_failure(suite: dict[str, Any]) -> None:
    suite["sources"]["multiply.frag"] = "void main() { nonsense; }"
    found = report.run("software", ["multiply"], suite=suite)
    assert (
        found["failed"] == found["failed"] + found["passed"] and "does not compile" in found["failures"][0]["problem"]
    )


def test_draws_that_differ_are_reported(suite: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    played, calls = draw._played, []

    def differing(*args: Any) -> Any:
        calls.append(args)
        found = [texels.copy() for texels in played(*args)]
        found[0].view(np.uint32)[..., 0] ^= len(calls) % 2
        return found

    monkeypatch.setattr(draw, "_played", differing)
    found = report.run("software", ["copy"], suite=suite)
    assert not found["deterministic"] and found["failed"]


def test_a_report_of_failures_everywhere_is_at_most_20_kb(suite: dict[str, Any]) -> None:
    about = report.run("software", ["multiply"], suite=suite)
    results = [
        Result(case, "failed", "shader does not compile: " * 40, "y", 1e30, 1e-30, 1e60) for case in cases(suite)
    ]
    assert len(json.dumps(about | report.summary(results), indent=1).encode()) <= 20_000


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a failed op does not give exit code 1, or an unknown op is ignored."""
    assert main(["selftest", "--op", "multiply", "--device", "software", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] > 0
    assert "has no op 'nonsense'" in refused(capsys, "selftest", "--op", "nonsense", "--device", "software")
    wrong = report.document()
    wrong["sources"]["multiply.frag"] = wrong["sources"]["multiply.frag"].replace(" * b_at", " + b_at")
    monkeypatch.setattr(report, "document", lambda: wrong)
    assert main(["selftest", "--op", "multiply", "--device", "software"]) == 1
    assert "FAIL: " in capsys.readouterr().out
