"""Draws the picture that sites show for a link to a web page: a model's activations for one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from glgpt.plots.cells import REACH, folded
from glgpt.plots.figure import figure_of, styled
from glgpt.plots.fonts import drawable
from glgpt.system.files import written_whole

WIDTH, HEIGHT, DPI = 1200, 630, 100  # size in pixels at which sites show link previews; dots per inch
NIGHT, BRIGHT, PALE, ACCENT = "#0a0e17", "#eef1f7", "#a3afc2", "#9d97ff"  # colours of the page's header
BELOW_AND_ABOVE = LinearSegmentedColormap.from_list("page", ["#ed7321", NIGHT, "#3378f5"])
LEFT, RIGHT, TOP, BOTTOM = 0.095, 0.83, 0.69, 0.09  # edges of the grid, as shares of the picture's width or height
GAP = 0.0035  # between the matrices of the grid, as a share of the picture's width or height


@dataclass(frozen=True)
class Word:
    """The predicted token: its label and probability, and the likeliest tokens with their probabilities."""

    label: str
    p: float
    others: Sequence[tuple[str, float]]


@styled
def strip_picture(
    path: Path,
    title: str,
    subtitle: str,
    prompt: str,
    columns: Sequence[str],
    lines: Sequence[str],
    cells: Sequence[Sequence[np.ndarray]],
    word: Word,
) -> None:
    """Writes a PNG of 1200 x 630 pixels with a grid of matrices.

    `columns` and `lines` are the labels of the grid's columns and rows. `cells[i]` holds the matrices of column i: one
    for each row, or a single one, which then fills the whole column.
    """
    figure, axes = figure_of(WIDTH / DPI, HEIGHT / DPI)
    axes.remove()
    figure.text(0.045, 0.885, "glgpt", color=ACCENT, size=30, weight="bold", va="center")
    figure.text(0.17, 0.885, drawable(title), color=BRIGHT, size=22, va="center")
    figure.text(0.045, 0.81, drawable(subtitle), color=PALE, size=14, va="center")
    figure.text(
        LEFT, TOP + 0.03, drawable(prompt), color=BRIGHT, size=13, va="center", family="DejaVu Serif", style="italic"
    )
    wide, high = (RIGHT - LEFT) / len(columns), (TOP - BOTTOM) / len(lines)
    for column, (name, stack) in enumerate(zip(columns, cells, strict=True)):
        left, each = LEFT + column * wide, (TOP - BOTTOM) / len(stack)
        figure.text(left + wide / 2, BOTTOM - 0.045, name, color=PALE, size=11, ha="center", va="center")
        for line, values in enumerate(stack):
            place = (left + GAP / 2, TOP - (line + 1) * each + GAP, wide - GAP, each - 2 * GAP)
            _cell(figure.add_axes(place), values, (wide * WIDTH) / (each * HEIGHT))
    for line, name in enumerate(lines):
        figure.text(LEFT - 0.012, TOP - (line + 0.5) * high, name, color=PALE, size=11, ha="right", va="center")
    at = RIGHT + 0.014
    figure.text(at, TOP - 0.05, f"→ {drawable(word.label)}", color=BRIGHT, size=22, weight="bold", va="center")
    figure.text(at, TOP - 0.13, f"{100 * word.p:.0f}%", color=ACCENT, size=18, va="center")
    for i, (label, p) in enumerate(word.others):
        y = TOP - 0.23 - 0.075 * i
        figure.text(at, y, drawable(label), color=BRIGHT, size=12, va="center")
        bar = figure.add_axes((at, y - 0.035, max(0.002, 0.14 * p / max(word.others[0][1], 1e-9)), 0.008))
        bar.set(facecolor=ACCENT, xticks=[], yticks=[])
        bar.spines[:].set_visible(False)
    with written_whole(path) as file:
        figure.savefig(file, format="png", dpi=DPI, facecolor=NIGHT, metadata={"Software": None})


def _cell(axes: Axes, values: np.ndarray, aspect: float) -> None:
    """Draws a matrix in its cell of the grid; a matrix of a few rows is first broken into more rows (`folded`)."""
    values = folded(values, aspect)
    far = max(REACH * float(np.abs(values).mean()), 1e-30)
    axes.imshow(values, cmap=BELOW_AND_ABOVE, vmin=-far, vmax=far, aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#232c3d")
