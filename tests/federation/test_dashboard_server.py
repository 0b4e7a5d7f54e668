"""Tests the gateway's responses to the dashboard. tests/browser/test_dashboard.py tests the dashboard itself."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import segno
from helpers.fake_session import FakeFlower, make_files, make_session, serving

from glgpt.cli.commands.federate.serve import print_links
from glgpt.page import built

BUILD_IT = "the dashboard is not built; run `make viewer` in the checkout, or install a wheel of glgpt"


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces viewer/dist with an empty folder."""
    monkeypatch.setattr(built, "data_path", lambda name: tmp_path / name)
    return tmp_path / "viewer/dist"


def call(address: str, token: str = "", body: Any = None) -> tuple[int, str, Any]:
    """Returns the status, text and headers of a response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_a_dashboard_that_is_not_built_is_said(tmp_path: Path, dist: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = make_files(tmp_path / "run")
    with serving(files, FakeFlower(files)) as host:
        assert call(host.address)[:2] == (503, BUILD_IT + "\n")
    args = SimpleNamespace(json=False, url=[], host="127.0.0.1")
    links = {"desktop": "http://x/#a.b", "dashboard": "http://x/#host=a.b"}
    print_links(args, make_session(), [links], "")
    assert f"dashboard:  {BUILD_IT}" in capsys.readouterr().out.splitlines()
    (dist / "dashboard").mkdir(parents=True)
    (dist / "dashboard/index.html").write_text("<title>dashboard</title>")
    print_links(args, make_session(), [links], "")
    assert "dashboard:  http://x/#host=a.b" in capsys.readouterr().out.splitlines()
    with serving(files, FakeFlower(files)) as host:
        status, text, headers = call(host.address)
    assert (status, text) == (200, "<title>dashboard</title>")
    assert headers["Content-Security-Policy"].startswith("default-src 'self'; script-src 'self';")


def test_qr_codes_are_for_the_host_and_of_bounded_size(tmp_path: Path) -> None:
    files = make_files(tmp_path / "run")
    with serving(files, FakeFlower(files)) as host:
        boss, member = (host.gateway.invitations.create(kind=kind) for kind in ("host", "member"))
        address = host.address + "v1/qr"
        assert call(address, member, {"text": "x"})[0] == 401
        for bad in ({}, {"text": ""}, {"text": 1}, {"text": "x" * 2001}, {"text": "é" * 1001}):
            assert call(address, boss, bad)[0] == 400, bad
        link = "https://example.org/train/#together=" + "a" * 200
        rows = json.loads(call(address, boss, {"text": link})[1])["rows"]
        assert rows == ["".join(map(str, row)) for row in segno.make_qr(link, error="l").matrix]
        assert call(address, boss, {"text": "é" * 1000})[0] == 200
