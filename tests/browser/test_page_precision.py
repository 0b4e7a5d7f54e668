"""Tests f16 training in the page: losses equal the desktop's even after an overflow; the desktop resumes the run."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import PACK
from helpers.exports import export_few
from small_model import write_small_model
from test_page_training import desktop_run
from training_page import CONFIG, PLAY, SEED, STEPS, Browse, Serve, presets_for_tests

from glgpt.page.export_options import ExportOptions
from glgpt.training.loss_scale import LossScale
from glgpt.training.trainer import Trainer

pytestmark = pytest.mark.slow
TRAIN = """async (options) => {
  const points = [];
  const done = glgpt.train({...options, onStep: (p) => {
    points.push([p.step, p.loss, p.gradNorm, p.overflows]);
    if (p.step === 4) glgpt.training.session.trainer.lossScale = {value: 2 ** 40, steps: 0};  // overflows
  }});
  return [await done, points];
}"""


@pytest.fixture(scope="module")
def site(once: Callable[..., Path]) -> Iterator[Path]:
    """Yields the page of a small model. The page can train `mini` in f16."""

    def fill(folder: Path) -> None:
        write_small_model(folder / "small")
        options = ExportOptions("f16", train=("mini",), precision="f16")
        export_few(folder / "small", folder / "page", options, device="software")

    with presets_for_tests():
        yield once("halves", fill) / "page"


@pytest.mark.soak
def test_losses_in_halves_equal_the_desktops_through_an_overflow(
    site: Path, serve: Serve, browse: Browse, tmp_path: Path
) -> None:
    """Fails if the page scales the loss differently than the desktop, or omits or repeats an overflowed step."""
    page = browse(serve(site) + "#tokens=1")
    page.evaluate("glgpt.ready")
    done, points = page.evaluate(TRAIN, {"text": PLAY, "config": CONFIG, "steps": STEPS, "seed": SEED})
    expected, judged = desktop_run(PLAY, STEPS, STEPS, precision="f16")
    assert done["step"] == STEPS and [p[0] for p in points] == list(range(1, STEPS + 1))
    np.testing.assert_allclose([p[1:3] for p in points], expected, atol=3e-4)
    overflowed = [p for p in points if p[3]]
    assert overflowed[0][0] > 4 and overflowed[0][3] > 10  # a later step may overflow again
    found = page.evaluate("glgpt.training.session.points.filter((p) => p.validation && p.step)")
    np.testing.assert_allclose([p["validation"] for p in found], list(judged.values()), atol=3e-4)
    saved = page.evaluate(f"async () => Object.entries(await glgpt.save()).map(([n, b]) => [n, ({PACK})(b)])")
    for name, data in saved:
        (tmp_path / name).write_bytes(base64.b64decode(data))
    with Trainer.load(tmp_path, device="software") as trainer:
        halved, taken = sum(p[3] for p in overflowed), STEPS - overflowed[-1][0] + 1
        assert trainer.recipe.precision == "f16" and trainer.steps_done == STEPS
        assert trainer.loss_scale == LossScale(2.0**40 / 2**halved, taken)
