"""Tests that pictures show their values, for any values and labels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from glgpt.plots import activations as plots
from glgpt.plots import figure, fonts, loss

Array = np.ndarray[Any, Any]


def pixels(path: Path) -> Array:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def colour(value: float, n: int) -> tuple[int, ...]:
    return tuple(int(c) for c in plots.ATTENTION(float(plots.attention_scale(n)(value)), bytes=True)[:3])


@pytest.mark.slow
def test_an_attention_picture_shows_its_values_without_blur(tmp_path: Path) -> None:
    n = 8
    pattern = np.tril(np.arange(n * n).reshape(n, n) % 3 / 2)  # 0, 0.5 and 1
    plots.AttentionPlot([f"t{i}" for i in range(n)], "test").draw(pattern, 0, 0, tmp_path / "p.png")
    image = pixels(tmp_path / "p.png")
    future = np.argwhere((image == np.array(mpl.colors.to_rgb("#e9e9ec")) * 255 // 1).all(axis=2))
    top, right = future[:, 0].min(), future[:, 1].max()
    side = round((future[:, 0].max() + 1 - top) * n / (n - 1))  # the last row has no future tokens
    area = image[top : top + side, right + 1 - side : right + 1]
    cell = side / n
    for row in range(n):
        for col in range(row + 1):
            y, x = int((row + 0.5) * cell), int((col + 0.5) * cell)
            assert tuple(area[y, x]) == colour(pattern[row, col], n), (row, col)
    allowed = {colour(v, n) for v in (0, 0.5, 1)} | {(0xE9, 0xE9, 0xEC)}
    assert {tuple(c) for c in area[1:-1, 1:-1].reshape(-1, 3).tolist()} <= allowed


def test_a_contact_sheet_has_a_cell_a_head_in_whole_pixels(tmp_path: Path) -> None:
    patterns = np.zeros((2, 3, 4, 4))
    patterns[..., 0] = np.arange(6).reshape(2, 3, 1) / 5
    plots.contact_sheet(patterns, [0, 7], [1, 2, 3], "test", tmp_path / "s.png")
    image = pixels(tmp_path / "s.png")
    counts = [int((image == colour(v / 5, 4)).all(axis=2).sum()) for v in range(1, 5)]
    # The first column of each head has the same number of pixels. The colour bar has a few of the same colours.
    assert len(set(counts)) <= 2 and min(counts) > 1000


def test_large_sheets_keep_the_largest_values() -> None:
    patterns = np.zeros((1, 1, 7, 7))
    patterns[0, 0, 5, 2] = 0.75
    assert np.argwhere(plots.pooled(patterns, 3)[0, 0]).tolist() == [[1, 0]]
    assert plots.pooled(patterns, 3).shape == (1, 1, 3, 3)
    assert np.array_equal(plots.pooled(patterns, 1), patterns)


@pytest.mark.parametrize("n", [1, 5, 40, 256])
def test_labels_are_as_many_as_fit(n: int) -> None:
    shown = figure.thinned(n, figure.cells(n, 0.19, 3.2, 9))
    assert shown[0] == 0 and len(shown) == n if n <= 40 else 20 < len(shown) <= 67


@pytest.mark.parametrize("labels", [["$x_1$", "日", "\\xe2", "⏎"], ["$"] * 4])
def test_any_label_can_be_drawn(labels: list[str], tmp_path: Path) -> None:
    plots.AttentionPlot(labels, "$x$").draw(np.eye(4), 0, 0, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("fill", [0.0, np.nan, np.inf, 1e38])
def test_odd_values_can_be_drawn(fill: float, tmp_path: Path) -> None:
    plots.heat_map(np.full((3, 5), fill), ["a", "b", "c"], "odd", tmp_path / "h.png")
    plots.norms(np.full((2, 3), fill), ["embed", "ln_f"], ["a", "b", "c"], "odd", tmp_path / "n.png")
    assert (tmp_path / "h.png").exists() and (tmp_path / "n.png").exists()


def test_a_loss_curve_draws_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.arange(1, 3001.0)
    training = np.stack([steps, 3 + steps % 2], axis=1)  # a loss that alternates with each step
    drawn: list[Any] = []
    monkeypatch.setattr(loss, "save", lambda figure, _: drawn.extend(figure.axes[0].lines))
    loss.loss_curve(training, np.zeros((0, 2)), "run", tmp_path / "l.png")
    each, mean = (line.get_xydata() for line in drawn)
    assert np.array_equal(each, training)
    assert np.array_equal(mean[:, 0], steps) and np.allclose(mean[:, 1], 3.5, atol=1 / 30)  # mean of at least 31 steps


@pytest.mark.slow
def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    code = (
        "import matplotlib as m; before = dict(m.rcParams); import glgpt.plots.activations as a, glgpt.plots.loss as l;"
        "import numpy as np, pathlib; assert dict(m.rcParams) == before;"
        f"p = pathlib.Path({str(tmp_path)!r}); a.heat_map(np.eye(2), ['a', 'b'], '$t$', p / 'h.png');"
        "l.loss_curve(np.ones((2, 2)), np.ones((0, 2)), 'run', p / 'l.png'); assert dict(m.rcParams) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_character_is_drawn_by_a_font_that_has_it_or_as_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def width(label: str) -> int:
        plots.AttentionPlot([label, "b"], "").draw(np.eye(2), 0, 0, tmp_path / "p.png")
        return pixels(tmp_path / "p.png").shape[1]

    assert fonts.drawable("caf\u00e9 \U0010ffff") == "caf\u00e9 \\U0010ffff"
    with monkeypatch.context() as patch:  # a system with no other fonts
        patch.setattr(fonts, "FALLBACKS", ())
        for cached in (fonts.families, fonts._known):
            cached.cache_clear()
        assert fonts.drawable("\u65e5x") == "\\u65e5x" and width("\u65e5" * 4) > width("\u00e9" * 4)
    for cached in (fonts.families, fonts._known):
        cached.cache_clear()
    width("\u65e5\u672c\ud55c")
    assert [str(w.message) for w in recwarn if "Glyph" in str(w.message)] == []
