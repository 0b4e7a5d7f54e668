"""Tests the logs of servers: levels, fields, formats and rotation."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from glgpt.errors import GlgptError
from glgpt.system import logs

logger = logging.getLogger("glgpt.test")


def test_json_has_one_object_a_line(tmp_path: Path) -> None:
    with logs.logging_to(str(tmp_path / "log"), "info", "json"):
        logger.debug("hidden")
        logger.info("refused %s", "a\nclient", extra={"fields": {"code": "token", "client": "1.2.3.4:5"}})
        try:
            raise RuntimeError("a fault")
        except RuntimeError as error:
            logger.error("failed", exc_info=error)
    logger.error("later")
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "glgpt.test",
        "message": "refused a\nclient",
        "code": "token",
        "client": "1.2.3.4:5",
    }
    assert second["level"] == "error" and "RuntimeError: a fault" in second["exception"]


def test_text_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with logs.logging_to(level="info"):
        logger.info("\x1b[2J\n", extra={"fields": {"name": "\x07x"}})
    line = capsys.readouterr().err
    assert line.endswith(r"Z info \x1b[2J\n name=\x07x" + "\n") and line.count("\n") == 1


def test_a_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOG_BYTES", 2000)
    with logs.logging_to(str(tmp_path / "log")):
        for i in range(200):
            logger.warning("line %d of many", i)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["log", *(f"log.{i}" for i in range(1, logs.KEPT_LOGS + 1))]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert "line 199 of many" in (tmp_path / "log").read_text()


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    said = r"--log-file .*/none/log cannot be written: No such file"
    with pytest.raises(GlgptError, match=said), logs.logging_to(str(tmp_path / "none" / "log")):
        pass
