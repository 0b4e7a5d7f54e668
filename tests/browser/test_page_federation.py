"""Tests a federation of two pages and two desktops on Flower. One page reloads during a round; a dashboard is open."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.federation_commands import running
from training_page import PLAY, Browse

pytest.importorskip("flwr", reason="make test-federate has what this needs")

ROUNDS, STEPS, QUORUM = 3, 8, 4


@pytest.fixture
def commands() -> Iterator[Any]:
    with running() as start:
        yield start


SAID = """() => { const f = glgpt.federation; return f && {
  status: f.status, round: f.round, step: f.step, trained: f.trained, rounds: f.rounds, member: f.member,
  problem: f.problem, others: f.others.length, answer: f.lastAnswer}; }"""


def test_two_pages_and_two_desktops(tmp_path: Path, browse: Browse, commands: Any) -> None:
    text = tmp_path / "play.txt"
    text.write_text(PLAY[:60_000], "utf-8")
    run = tmp_path / "run"
    host = commands(
        "serve", str(text), "--preset", "nano", "--context", "32", "--batch", "4", "--lr", "1e-3", "--out", str(run),
        "--rounds", str(ROUNDS), "--local-steps", str(STEPS), "--quorum", str(QUORUM), "--round-seconds", "240",
        "--grace", "20", "--port", "0", "--eval-tokens", "1024",
    )  # fmt: skip
    ready = host.wait(lambda: host.events("ready"))[0]
    dashboard = browse(ready["dashboard"], provokes="Failed to load")
    desktops = [commands("join", ready["desktop"], "--name", f"desktop {i}") for i in range(2)]
    pages = [browse(ready["browser"], provokes="WebSocket|Failed to load", own=True) for _ in range(2)]
    for i, page in enumerate(pages):
        page.wait_for_function("globalThis.glgpt && glgpt.model !== undefined")
        page.evaluate("glgpt.ready")
        page.get_by_label("Nickname").fill(f"page {i}")
        page.get_by_role("button", name="Join", exact=True).click()
    reloaded = pages[1]
    reloaded.wait_for_function("glgpt.federation?.status === 'training' && glgpt.federation.step > 0", timeout=240_000)
    member = reloaded.evaluate(SAID)["member"]
    reloaded.reload(wait_until="commit")
    reloaded.wait_for_function("globalThis.glgpt?.federation?.status === 'training'", timeout=240_000)
    assert reloaded.evaluate(SAID)["member"] == member  # the page joins again as this member, with its stored key
    dashboard.wait_for_function(
        "document.querySelectorAll('.devices tr:is([data-state=training], [data-state=sent])').length"
    )
    dashboard.wait_for_function("document.querySelectorAll('.devices tbody tr').length === 4", timeout=240_000)
    for page in pages:
        page.wait_for_function("glgpt.federation.status === 'over'", timeout=400_000)
        said = page.evaluate(SAID)
        assert len(said["rounds"]) == ROUNDS and said["others"] == 4, said
        assert page.locator(".federated-others tbody tr").count() == 4
    assert host.wait(lambda: host.events("done"))[0]["rounds"] == ROUNDS
    for desktop in desktops:
        assert desktop.wait(lambda d=desktop: d.events("left"))[0]["rounds"] == ROUNDS
    rounds = host.events("round")
    assert [line["clients"] for line in rounds] == [4] * ROUNDS
    losses = [line["validation_loss"] for line in rounds if "validation_loss" in line]
    # Rounds are short: on a busy machine, the last loss was 0.0015 above the one before it.
    assert max(losses[1:]) < losses[0] < 4.5, losses
    assert host.process.wait(60) == 0
    dashboard.wait_for_function(
        f"document.querySelector('[data-kind=good]')?.innerText.startsWith('All {ROUNDS} rounds')"
    )
    assert dashboard.locator("[aria-label=Loss]").get_attribute("data-points") == str(ROUNDS)
    generated = subprocess.run(
        [sys.executable, "-m", "glgpt", "generate", "To be", "--model", str(run), "--tokens", "3", "--seed", "1"],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    assert generated.stdout.startswith("To be")
