"""Tests the dashboard of a federation's host in Chromium, with a real gateway and simulated devices (`Peer`)."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import segno
from browser import TEST_FLAGS, wait_without_eval
from helpers.fake_session import FakeFlower, make_files, serving
from helpers.federation_peer import Peer
from playwright.sync_api import expect

from glgpt.federation.invitations import HOST_LINK
from glgpt.federation.session import ENDED
from glgpt.page.built import built_dashboard
from glgpt.system.files import data_path

NORMAL, PHONE = {"width": 1366, "height": 768}, {"width": 390, "height": 844}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
SILENT = "Failed to load resource|ERR_CONNECTION"  # console messages about a server that does not answer
DRAWN = """() => {
  const canvas = document.querySelector('[aria-label=Loss] canvas');
  const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some((v) => v);
}"""
expect.set_options(timeout=20_000)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # websockets' connect warns


@pytest.fixture
def visit(browsers: Any) -> Iterator[Callable[..., Any]]:
    """visit(address) opens a page in a fresh profile. A complaint that does not match `provokes` fails the test."""
    assert built_dashboard()
    complaints, expected, contexts = [], [], []

    def open_page(address: str, provokes: str = "^$", **options: Any) -> Any:
        expected.append(provokes)
        contexts.append(browsers.context(TEST_FLAGS, None, viewport=NORMAL, reduced_motion="reduce", **options))
        page = wait_without_eval(contexts[-1].new_page())
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [said for said in complaints if not any(re.search(e, said) for e in expected)] == []


class Session:
    """Runs a gateway that can be stopped and restarted at the same address."""

    def __init__(self, folder: Path, **terms: Any) -> None:
        self.files = make_files(folder / "run", name="together", **terms)
        self.files.page.mkdir()
        (self.files.page / "index.html").write_text("<title>joins</title><link rel=icon href=data:,>")
        (self.files.run / "config.json").write_text("{}")
        self._running, self._port = ExitStack(), 0
        self.start()
        invitations = self.host.gateway.invitations
        self.token, self.boss = invitations.create(), invitations.create(kind="host")
        self.link = f"{self.host.address}#host={self.boss}"

    def start(self) -> None:
        self.host: SimpleNamespace = self._running.enter_context(
            serving(self.files, FakeFlower(self.files), port=self._port)
        )
        self._port = int(self.host.address.rsplit(":", 1)[1].strip("/"))

    def stop(self) -> None:
        self._running.close()

    def join(self, name: str, token: str = "", **more: Any) -> Peer:
        peer = Peer(self.host, token or self.token, name=name, **more)
        peer.key = peer.next("welcome")["resume"]
        return peer

    def round(self, peers: list[Peer], **changed: Any) -> None:
        """Trains one round on each device."""
        for peer in peers:
            round_ = peer.next("round")
            assert peer.train(round_, round_["parameters"] + np.float32(0.1), **changed)["type"] == "accepted"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    made = Session(tmp_path, rounds=5, quorum=2)
    yield made
    made.stop()


def row(page: Any, name: str) -> Any:
    return page.locator(f"tr[data-device='{name}']")


def confirm(page: Any, action: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=action).click()


def test_two_devices_are_followed_through_a_round(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link)
    expect(page.get_by_text("No device has joined yet.")).to_be_visible()
    expect(page.get_by_text("The curve starts after the first round.")).to_be_visible()
    assert "host=" not in page.url  # otherwise the token would stay in the browser's history
    one = session.join("one", device="ANGLE (Fast GPU)", kind="browser")
    two = session.join("<b>two</b>", kind="desktop")
    first = one.next("round")
    one.say({"type": "progress", "step": 2, "loss": 3.25, "tokens_per_s": 1234.0})
    one.say({"type": "ping", "n": 1, "ms": 42.0})
    expect(row(page, "one")).to_contain_text("Step 2 of 4")
    for text in ("ANGLE (Fast GPU)", "3.250", "1,234", "42 ms"):
        expect(row(page, "one")).to_contain_text(text)
    expect(page.get_by_role("rowheader", name="<b>two</b>")).to_be_visible()  # names are text, not markup
    assert one.train(first, first["parameters"] + 1)["type"] == "accepted"
    expect(row(page, "one")).to_contain_text("Update received")
    expect(page.get_by_role("progressbar", name="Round 1: 1 of 2 updates")).to_be_visible()
    session.round([two])
    expect(page.get_by_role("region", name="Session")).to_contain_text("Round 2 of 5")
    session.round([one, two])
    expect(page.get_by_role("img", name=re.compile("Loss over 2 rounds, now 2.500"))).to_be_visible()
    assert page.evaluate(DRAWN)
    expect(page.get_by_role("region", name="Rounds", exact=True).get_by_role("row")).to_have_count(3)
    assert page.title() == "Round 2 of 5: together"
    page.reload()
    expect(row(page, "one")).to_be_visible()  # the token is stored for this tab


def test_pause_resume_and_remove(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link)
    one, _ = session.join("one"), session.join("two")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("No round begins or ends until you resume.")).to_be_visible()
    assert session.files.paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert not session.files.paused
    remove = row(page, "one").get_by_role("button", name="Remove one")
    remove.click()
    confirm(page, "Cancel")
    expect(row(page, "one")).to_be_visible()
    remove.click()
    confirm(page, "Remove the device")
    assert one.closed()[0] == 4410
    expect(page.get_by_text("1 removed")).to_be_visible()
    expect(row(page, "one")).to_be_hidden()
    expect(row(page, "two")).to_be_visible()


def test_the_model_is_downloaded(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link)
    with page.expect_download() as found:
        page.get_by_role("button", name="Download the model").click()
    assert found.value.suggested_filename == "together-round-0.zip"
    with zipfile.ZipFile(found.value.path()) as archive:
        assert archive.namelist() == ["model/config.json"]
    expect(page.get_by_role("button", name="Download the model")).to_be_enabled()


def test_a_device_joins_by_a_new_link_until_it_is_revoked(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link)
    page.get_by_label("Valid for").select_option("1 day")
    page.get_by_label("one device only").check()
    page.get_by_role("button", name="New link").click()
    link = page.get_by_label("For a browser", exact=True).input_value()
    assert link.startswith(f"{session.host.address}train/#view=train&tokens=1&together=")
    token = link.split("together=")[1]
    desktop = f"glgpt federate join '{session.host.address}#{token}'"
    expect(page.get_by_label("For a desktop with glgpt")).to_have_value(desktop)
    dark = sum(map(sum, segno.make_qr(link, error="l").matrix))
    path = page.get_by_role("img", name="QR code").locator("path")
    expect(path).to_be_attached()
    assert path.get_attribute("d").count("M") == dark
    opened = page.get_by_role("listitem").filter(has_text="1 device more, expires in 24 hours")
    expect(opened).to_be_visible()
    session.join("guest", token)
    expect(row(page, "guest")).to_be_visible()
    page.get_by_label("one device only").uncheck()
    page.get_by_role("button", name="New link").click()
    expect(page.get_by_label("For a browser", exact=True)).not_to_have_value(link)
    token = page.get_by_label("For a browser", exact=True).input_value().split("together=")[1]
    shown = page.get_by_role("listitem").filter(has=page.get_by_role("button", name="Hide"))
    shown.get_by_role("button", name="Revoke").click()
    confirm(page, "Revoke the link")
    expect(page.get_by_label("For a browser", exact=True)).to_be_hidden()
    assert Peer(session.host, token).closed()[0] == 4403


def test_the_end_is_said_when_the_server_stops(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link, provokes=SILENT)
    page.get_by_role("button", name="End the session").click()
    expect(page.get_by_role("dialog")).to_contain_text("5 of 5 rounds are not done yet.")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    confirm(page, "End the session")
    page.wait_for_function("!document.querySelector('dialog').open")
    expect(page.get_by_role("button", name="End the session")).to_be_enabled()
    assert (session.files.folder / ENDED).exists()
    session.stop()
    expect(page.get_by_text("The session ended after 0 of 5 rounds.")).to_be_visible()
    expect(page.get_by_role("region", name="Session")).to_contain_text("0 of 5 rounds done")
    for name in ("Pause", "Download the model", "End the session", "New link"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()


@pytest.mark.soak
def test_a_server_that_restarts_is_found_again(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link, provokes=SILENT)
    one = session.join("one")
    expect(row(page, "one")).to_contain_text("Starting")
    session.stop()
    expect(page.get_by_text("The server does not answer.")).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()
    expect(row(page, "one")).to_be_visible()  # shows the device's last known state
    session.start()
    expect(page.get_by_text("The server does not answer.")).to_be_hidden()
    expect(row(page, "one")).to_contain_text("Offline")
    session.join("one", resume=one.key)
    expect(row(page, "one")).not_to_contain_text("Offline")


def test_a_failed_action_says_why(session: Session, visit: Callable[..., Any]) -> None:
    page = visit(session.link, provokes="status of 500")
    page.route("**/v1/pause", lambda route: route.fulfill(status=500, json={"error": "the disk is full"}))
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("alert")).to_contain_text("Pausing failed. The server answered 500: the disk is full.")
    expect(page.get_by_role("button", name="Pause")).to_be_enabled()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_links_that_are_not_the_hosts(session: Session, visit: Callable[..., Any]) -> None:
    guest = visit(f"{session.host.address}#{session.token}")
    expect(guest.get_by_text("You are invited to train together")).to_be_visible()
    guest.get_by_role("link", name="Join in this browser").click()
    guest.wait_for_url(f"**/train/#view=train&tokens=1&together={session.token}")
    expect(guest.locator(".shell-unknown")).to_have_count(0)
    wrong = visit(f"{session.host.address}#x.y", provokes="status of 401")
    expect(wrong.get_by_role("alert")).to_contain_text("unknown, expired or revoked. Ask the host")
    stranger = visit(session.host.address, provokes="status of 401")
    field = stranger.get_by_label("The host's link")
    for link, said in (("https://example.org/", "not the host's link"), ("http://x/#host=a.b", "expired or revoked")):
        field.fill(link)
        stranger.get_by_role("button", name="Open").click()
        expect(stranger.get_by_role("alert").filter(has_text=said)).to_be_visible()
    field.fill(session.link)
    stranger.get_by_role("button", name="Open").click()
    expect(stranger.get_by_text("No device has joined yet.")).to_be_visible()


def test_the_hosts_link_works_once(session: Session, visit: Callable[..., Any]) -> None:
    """Regression: the link's token stayed in the browser's history and was valid for years."""
    link = f"{session.host.address}#host={session.host.gateway.invitations.create(kind=HOST_LINK)}"
    page = visit(link, provokes="status of 401")
    expect(page.get_by_text("No device has joined yet.")).to_be_visible()
    assert page.url == session.host.address
    stored = page.evaluate("Object.values(sessionStorage).join()")
    assert link.partition("=")[2] not in stored
    for again in (page.reload, lambda: (page.goto("about:blank"), page.goto(link))):  # both use the tab's stored token
        again()
        expect(page.get_by_text("No device has joined yet.")).to_be_visible()
    other = visit(link, provokes="status of 401")
    expect(other.get_by_role("alert")).to_contain_text("This host link has already been used")


def test_it_fits_both_sizes_and_axe_finds_nothing(session: Session, visit: Callable[..., Any]) -> None:
    peers = [session.join("one", device="A renderer with a name of some length " * 4), session.join("two")]
    session.round(peers)
    axe = data_path("viewer/node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
    for scheme in ("light", "dark"):
        page = visit(session.link, color_scheme=scheme)
        page.get_by_role("button", name="New link").click()
        expect(page.get_by_label("For a browser", exact=True)).to_be_visible()
        expect(row(page, "one")).to_be_visible()
        page.evaluate(f"{axe}; 0")
        for size in (NORMAL, PHONE):
            page.set_viewport_size(size)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
            violations = page.evaluate(f"axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then((r) => r.violations)")
            assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], (scheme, size)
