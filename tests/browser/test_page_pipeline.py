"""Tests the five steps of the Train tab, from a text to a score, and compares the score with the desktop's."""

from __future__ import annotations

import base64
import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from browser import preferring
from training_page import PLAY, SEED, TRAIN, Browse, Serve

from glgpt import data
from glgpt.cli import main
from glgpt.text.files import Text
from glgpt.text.tokenizer_inspection import cut_of
from glgpt.text.tokenizer_training import make_tokenizer

pytestmark = pytest.mark.slow
ZIP = """async () => {
  const data = await glgpt.training.zip();
  let text = '';
  for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
  return btoa(text);
}"""
# Returns the fields of the Train step whose layout shifted since the page was opened.
MOVED = """() => new Promise((resolve) => {
  setTimeout(resolve, 1000, []);
  new PerformanceObserver((list) => resolve(
    list.getEntries().flatMap((shift) => shift.sources).map(({ node }) => node?.parentElement ?? node)
      .filter((node) => node?.closest('.train-settings')).map((node) => node.outerHTML),
  )).observe({ type: 'layout-shift', buffered: true });
})"""
SLOW = 300_000  # ms; waits may be long, since other processes may use the two cores too


def stage(page: Any, name: str) -> None:
    page.locator(".train-stages").get_by_role("button", name=name).click()


def unpacked(page: Any, folder: Path) -> Path:
    zipfile.ZipFile(io.BytesIO(base64.b64decode(page.evaluate(ZIP)))).extractall(folder)
    return folder


def test_a_newcomer_walks_from_a_text_to_a_score(site: Path, serve: Serve, browse: Browse, tmp_path: Path) -> None:
    page = browse(serve(site) + "#tokens=1&view=train&steps=6&evalEvery=6&sampleEvery=3")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("glgpt.ready")
    page.set_default_timeout(SLOW)

    def fits() -> None:
        for width, height in ((1366, 768), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(f"innerWidth === {width}")
            page.evaluate("scrollTo(0, 0)")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            start = page.locator(".train-run .ui-primary").bounding_box()
            assert start["y"] >= 0 and start["y"] + start["height"] <= height  # visible without scrolling

    page.get_by_role("button", name="Addition").click()
    page.wait_for_function(
        "document.querySelector('.train-preview .train-held') && "
        "/1\\d?\\+/.test(document.querySelector('.ui-sample').textContent)",
        timeout=SLOW,
    )
    fits()

    stage(page, "Tokens")
    page.wait_for_function("document.querySelectorAll('[data-part=vocabulary]')[1]?.dataset.tokens > 0", timeout=SLOW)
    fits()
    sums, found = Text.of_string(data.bundled("addition")), page.locator("[data-part=vocabulary]").nth(1)
    merges = int(found.get_attribute("data-merges"))
    tokenizer = make_tokenizer(f"bpe:{257 + merges}", sums.split(0.1)[0], tmp_path / "tokenizer")
    assert int(found.get_attribute("data-tokens")) == cut_of("bpe", tokenizer, sums).tokens

    stage(page, "Data")
    page.locator(".train-run .ui-primary").click()  # opens the Train step
    page.wait_for_function("document.querySelector('.train-state').dataset.status === 'done'", timeout=SLOW)
    assert page.locator(".train-stages [aria-current]").inner_text().endswith("Train")
    assert page.locator(".train-film li").count() == 3
    assert page.evaluate("glgpt.training.session.step") == 6
    fits()

    stage(page, "Write")
    page.get_by_label("Prompt").fill("1+1=")
    page.get_by_label("Length").fill("5")
    page.get_by_role("button", name="Generate", exact=True).click()
    page.wait_for_function("glgpt.training.session.samples.at(-1).prompt === '1+1='", timeout=SLOW)
    fits()

    stage(page, "Score")
    page.get_by_role("button", name="Score the model").click()
    page.wait_for_function("document.querySelector('.train-verdict')", timeout=SLOW)
    fits()
    text = page.locator(".train-score").inner_text()
    assert "trigram" in text and "questions that it was not trained on" in text
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert [row["predictor"] for row in rows] == ["model", "chance", "unigram", "bigram", "trigram", "embedded"]
    origin = json.loads((unpacked(page, tmp_path / "model") / "source.json").read_text())
    assert origin["source"] == "glgpt addition" and origin["bytes"] == sums.size and origin["sha256"] == sums.digest()


@pytest.mark.soak
def test_a_second_run_is_drawn_over_the_first(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a run is drawn without the previous run's loss, or its time is not estimated before its start."""
    page = browse(serve(site) + "#tokens=1&view=train&step=train&steps=6&evalEvery=3&sampleEvery=0")
    page.evaluate("glgpt.ready")
    page.get_by_text("6 steps, about ").first.wait_for()
    for _ in range(2):
        page.get_by_role("button", name="Start").click()
        page.wait_for_function("document.querySelector('.train-state').dataset.status === 'done'", timeout=SLOW)
        page.get_by_role("button", name="Reset").click()
        page.get_by_role("button", name="Delete the model?").click()
        page.get_by_text("Not started").wait_for()
        assert (
            page.locator("[data-part=earlier]")
            .inner_text()
            .startswith("Grey: validation loss of the previous run (glgpt plays")
        )
    assert "previous validation" in page.locator(".train-learning .u-legend").first.inner_text()
    assert len(page.evaluate("glgpt.training.earlier.points")) >= 6
    page.reload()
    page.locator("[data-part=earlier]").get_by_role("button", name="Remove it").click()
    assert page.locator("[data-part=earlier]").count() == 0


def test_a_link_prepares_a_training(site: Path, serve: Serve, browse: Browse) -> None:
    """Fails if a link's settings are not applied, or if controls move when the estimate of the run's time appears."""
    link = (
        "#tokens=1&view=train&step=train&set=sorting&vocabulary=bpe:300&steps=7&lr=0.002&train-seed=4&schedule=linear"
    )
    page = browse(serve(site) + link, f"{{{preferring('contiguous', kernels=False)}}}", measures=True)
    page.evaluate("glgpt.ready")
    page.get_by_role("button", name="Start", exact=True).and_(page.locator(":enabled")).wait_for()
    page.wait_for_function("document.querySelector('.train-settings').textContent.includes('7 steps, about')")
    assert page.evaluate(MOVED) == []  # no control moves while a visitor may be about to press it
    page.get_by_text("Schedule", exact=True).click()
    assert page.get_by_role("spinbutton", name="Steps", exact=True).input_value() == "7"
    assert page.get_by_label("Learning rate").input_value() == "0.002"
    page.wait_for_function("new URLSearchParams(location.hash.slice(1)).get('set') === 'sorting'")
    link_now = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    wanted = {"vocabulary": "bpe:300", "steps": "7", "lr": "0.002", "train-seed": "4", "schedule": "linear"}
    assert wanted.items() <= link_now.items()


@pytest.mark.soak
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_score_is_the_desktops(
    embedded_trains: Path,
    serve: Serve,
    browse: Browse,
    tmp_path: Path,
    tokenizer: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Fails if the page's score of a new model differs from the desktop's (`glgpt eval --suite`).

    Both compare the new model with the embedded model, so this test opens the embedded model's page.
    """
    page = browse(serve(embedded_trains) + "#tokens=1")
    page.evaluate("glgpt.ready")
    text = PLAY[:12_000] + "naïve – 漢字 🙂\n" * 20
    config = {"tokenizer": tokenizer, "evalEvery": 0, "sampleEvery": 0}
    page.evaluate(TRAIN, [{"text": text, "config": config, "steps": 20, "seed": SEED}, 0])
    found = page.evaluate("glgpt.score()")
    model = unpacked(page, tmp_path / "model")
    train, held = Text.of_string(text).split(0.1)
    for name, part in (("train.txt", train), ("held.txt", held)):
        (tmp_path / name).write_text("".join(piece for piece, _ in part.pieces()), encoding="utf-8")
    args = ["eval", str(tmp_path / "held.txt"), "--model", str(model), "--training", str(tmp_path / "train.txt")]
    assert main([*args, "--suite", "--json", "--device", "software"]) == 0
    wanted = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["figures"]] == [row["name"] for row in wanted["figures"]]
    for ours, theirs in zip(found["figures"], wanted["figures"], strict=True):
        for key in ("nats_per_token", "bits_per_byte", "top_1", "top_5", "calibration_error"):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-4), (ours["name"], key)
    assert (found["tokens"], found["bytes"]) == (wanted["tokens"], wanted["bytes"])
    assert found["sample"] == wanted["sample"] and found["copies"] == pytest.approx(wanted["copies"], abs=1e-4)
