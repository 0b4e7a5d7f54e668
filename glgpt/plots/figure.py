"""Defines what all pictures share: the style, sizes in whole pixels, token labels and colour bars.

A cell is the rectangle that shows one value of a matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from glgpt.plots.fonts import drawable, families
from glgpt.system.files import written_whole

P = ParamSpec("P")
T = TypeVar("T")
DPI = 120


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Makes a function draw in this package's style; restores the caller's matplotlib settings afterwards."""
    style = {
        "text.parse_math": False,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
    }

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with mpl.rc_context(style | {"font.family": families("DejaVu Sans")}):
            return draw(*args, **kwargs)

    return wrapper


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as a PNG, atomically."""
    with written_whole(path) as file:
        figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.12, facecolor="white")


def thinned(n: int, inches: float, each: float = 0.135) -> np.ndarray:
    """Returns evenly spaced indices below `n`, so few that their labels, of `each` inches, fit into `inches`."""
    return np.arange(0, n, max(1, int(np.ceil(n * each / inches))))


def label_axis(axis: Any, labels: Sequence[str], inches: float, **style: Any) -> None:
    """Draws token labels along an axis that is `inches` long.

    If the labels of all tokens do not fit, omits some of them, and adds the token's position to each remaining label.
    """
    shown = thinned(len(labels), inches)
    texts = [drawable(labels[i] if len(shown) == len(labels) else f"{labels[i]} {i}") for i in shown]
    axis.set_ticks(shown, texts, family=families("DejaVu Sans Mono"), fontsize=7.5, **style)


def cells(n: int, each: float, least: float, most: float) -> float:
    """Returns the total width (or height) in inches of `n` cells of about `each` inches.

    The total, n * each, is clamped to `least` .. `most` and then rounded so that a cell is a whole number of pixels
    wide.
    """
    return max(1, round(min(max(each * n, least), most) * DPI / n)) * n / DPI


def figure_of(width: float, height: float) -> tuple[Figure, Axes]:
    """Returns a figure of `width` x `height` inches, and its axes, which fill the figure."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))  # `save` enlarges the picture for the labels around the axes
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=2, color="#888888")
    return figure, axes


def colour_bar(figure: Figure, image: AxesImage, label: str, height: float = 1.0, **ticks: Any) -> None:
    """Adds a colour bar to the right of the axes; `height` is a share of the axes' height."""
    inch = 1 / figure.get_figwidth()
    bar = figure.colorbar(image, cax=figure.add_axes((1 + 0.15 * inch, 1 - height, 0.16 * inch, height)), **ticks)
    bar.outline.set_visible(False)
    bar.set_label(label)
