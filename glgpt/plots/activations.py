"""Draws the activations of a model: attention patterns, heat maps, the residual stream, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize, PowerNorm, TwoSlopeNorm
from matplotlib.image import AxesImage

from glgpt.plots.figure import DPI, cells, colour_bar, figure_of, label_axis, save, styled
from glgpt.plots.fonts import drawable, families

ATTENTION = mpl.colormaps["magma"].with_extremes(bad="#e9e9ec")
SIGNED = mpl.colormaps["RdBu_r"].with_extremes(bad="#d0d0d0")
AMOUNT = mpl.colormaps["viridis"].with_extremes(bad="#d0d0d0")
MAX_SHEET_PIXELS = 6000  # maximum pixels of the longer side of `contact_sheet`, not counting the gaps between patterns


def attention_scale(n: int) -> PowerNorm:
    """Returns a colour scale from 0 to 1 on which small values stay visible; `n` is the number of positions."""
    return PowerNorm(1 / 2 if n <= 32 else 1 / 3, 0, 1)


def causal(pattern: np.ndarray) -> np.ndarray:
    """Returns a pattern [..., T, T] with the future of each position masked."""
    future = np.triu(np.ones(pattern.shape[-2:], bool), 1)
    return np.ma.masked_array(pattern, np.broadcast_to(future, pattern.shape))


def pooled(patterns: np.ndarray, step: int) -> np.ndarray:
    """Returns the largest value of each `step` x `step` block of patterns [..., T, T]."""
    starts = np.arange(0, patterns.shape[-1], step)
    rows: np.ndarray = np.maximum.reduceat(patterns, starts, axis=-2)
    return rows if step == 1 else np.maximum.reduceat(rows, starts, axis=-1)


class AttentionPlot:
    """A figure that is reused for the patterns of several heads, so that labels and colours are laid out once."""

    @styled
    def __init__(self, labels: Sequence[str], subtitle: str) -> None:
        n, self.subtitle = len(labels), subtitle
        inches = cells(n, 0.19, 3.2, 9)
        self.figure, self.axes = figure_of(inches, inches)
        self.image = self.axes.imshow(
            np.zeros((n, n)), norm=attention_scale(n), cmap=ATTENTION, interpolation="nearest"
        )
        label_axis(self.axes.xaxis, labels, inches, rotation=90)
        label_axis(self.axes.yaxis, labels, inches)
        self.axes.set_xlabel("attends to")
        self.axes.set_ylabel("token")
        colour_bar(self.figure, self.image, "attention")

    @styled
    def draw(self, pattern: np.ndarray, layer: int, head: int, path: Path) -> None:
        """Writes the picture of one head's pattern [T, T]."""
        self.image.set_data(causal(pattern))
        self.axes.set_title(drawable(f"layer {layer}, head {head}   {self.subtitle}"), pad=8)
        save(self.figure, path)


@styled
def contact_sheet(patterns: np.ndarray, layers: Sequence[int], heads: Sequence[int], subtitle: str, path: Path) -> None:
    """Draws all patterns [layers, heads, T, T] in one picture: each row is a layer, each column a head.

    Each value is a square of a whole number of pixels. If a side of the picture would exceed `MAX_SHEET_PIXELS`, a
    square shows the largest value of a block of neighbouring values.
    """
    rows, cols, n = patterns.shape[:3]
    upper = causal(pooled(patterns, -(-n * max(rows, cols) // MAX_SHEET_PIXELS)))
    n = upper.shape[-1]
    scale = max(1, int(float(np.clip(11.0 / cols, 0.55, 1.8)) * DPI) // n)
    side = n * scale
    gap = max(2, side // 24)
    sheet = np.full((rows * (side + gap) - gap, cols * (side + gap) - gap, 4), 255, np.uint8)
    for r in range(rows):
        for c in range(cols):
            y, x = r * (side + gap), c * (side + gap)
            paint = ATTENTION(attention_scale(n)(upper[r, c]), bytes=True)
            sheet[y : y + side, x : x + side] = paint.repeat(scale, 0).repeat(scale, 1)
    width, height = sheet.shape[1] / DPI, sheet.shape[0] / DPI
    figure, axes = figure_of(width, height)
    axes.imshow(sheet, interpolation="nearest")
    middle = side / 2 - 0.5
    axes.set_xticks([c * (side + gap) + middle for c in range(cols)], [str(h) for h in heads])
    axes.set_yticks([r * (side + gap) + middle for r in range(rows)], [str(i) for i in layers])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(drawable(f"attention of every layer and head   {subtitle}"), pad=10)
    scale_image = AxesImage(axes, norm=attention_scale(n), cmap=ATTENTION)
    colour_bar(figure, scale_image, "attention", min(1.0, 4.0 / height))
    save(figure, path)


@styled
def heat_map(values: np.ndarray, labels: Sequence[str], title: str, path: Path, square: bool = False) -> None:
    """Draws a matrix [T, width] in which each row is a token; with `square`, each column is a token too.

    A matrix with negative values is drawn in blue below zero and red above; other matrices range from dark to light.
    The colour scale ends at the 99.5th percentile of the magnitudes. If it ended at the largest magnitude, a few
    outliers would hide the differences among the other values.
    """
    values = np.ma.masked_invalid(values)
    n, cols = values.shape
    known = np.abs(values.compressed())
    top = float(np.percentile(known, 99.5)) if known.size else 1.0
    top = top or float(known.max(initial=0.0)) or 1.0
    signed = bool((values < 0).any())
    width = cells(n, 0.19, 3.2, 9) if square else cells(cols, 0.03, 4.5, 13)
    height = width if square else cells(n, 0.19, 1.2, 9)
    figure, axes = figure_of(width, height)
    norm = TwoSlopeNorm(0, -top, top) if signed else Normalize(0, top)
    image = axes.imshow(values, norm=norm, cmap=SIGNED if signed else AMOUNT, interpolation="nearest", aspect="auto")
    label_axis(axes.yaxis, labels, height)
    axes.set_xlabel("attends to" if square else "column")
    if square:
        label_axis(axes.xaxis, labels, width, rotation=90)
    axes.set_title(drawable(title), pad=8)
    colour_bar(figure, image, "value (ends clipped)" if known.size and known.max() > top else "value")
    save(figure, path)


@styled
def norms(rows: np.ndarray, names: Sequence[str], labels: Sequence[str], subtitle: str, path: Path) -> None:
    """Draws the L2 norms of the residual stream, `rows` [places, T]: each column is a token.

    The first row has the norms after the embedding, and each further row those after a block. `names` labels the rows.
    """
    n, rows = rows.shape[1], np.ma.masked_invalid(rows)
    known = rows.compressed() if rows.count() else np.ones(1)
    width, height = cells(n, 0.19, 4, 13), cells(len(names), 0.24, 1.2, 24)
    figure, axes = figure_of(width, height)
    image = axes.imshow(
        rows,
        norm=LogNorm(max(known.min(), 1e-6), max(known.max(), 2e-6)),
        cmap=AMOUNT,
        interpolation="nearest",
        aspect="auto",
    )
    label_axis(axes.xaxis, labels, width, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.set_title(drawable(f"length of the residual stream   {subtitle}"), pad=8)
    low, high = image.get_clim()
    ticks = [t for power in range(-6, 9) for t in (10.0**power, 2 * 10.0**power, 5 * 10.0**power) if low <= t <= high]
    colour_bar(figure, image, "L2 norm (log)", ticks=ticks, format="%g")
    save(figure, path)


@styled
def top_predictions(
    probabilities: np.ndarray,
    words: Sequence[Sequence[str]],
    right: np.ndarray,
    labels: Sequence[str],
    title: str,
    path: Path,
) -> None:
    """Draws the likeliest next tokens: each row is a position, each column a rank.

    In each cell, the colour shows the token's probability (`probabilities` [T, k]), and the text is its label (`words`
    [T, k]). `right` [T, k] is True for the token that came next in the text.
    """
    n, k = probabilities.shape
    mono = families("DejaVu Sans Mono")
    figure, axes = figure_of(0.95 * k, max(0.6, 0.24 * n))
    image = axes.imshow(probabilities, norm=PowerNorm(0.5, 0, 1), cmap=AMOUNT, interpolation="nearest", aspect="auto")
    for t in range(n):
        for r in range(k):
            bright = probabilities[t, r] > 0.35
            axes.text(
                r, t, drawable(words[t][r]), ha="center", va="center", fontsize=7.5, family=mono,
                color="black" if bright else "white", fontweight="bold" if right[t, r] else "normal", clip_on=True,
            )  # fmt: skip
            if right[t, r]:
                axes.add_patch(
                    mpl.patches.Rectangle((r - 0.48, t - 0.46), 0.96, 0.92, fill=False, ec="#ff4d4d", lw=1.4)
                )
    axes.set_yticks(range(n), [drawable(label) for label in labels], family=families("DejaVu Sans Mono"), fontsize=7.5)
    axes.set_xticks(range(k), [str(r + 1) for r in range(k)])
    axes.set_xlabel("rank (red: the token that came next)")
    axes.set_ylabel("after")
    axes.set_title(drawable(title), pad=8)
    colour_bar(figure, image, "probability", min(1.0, 4.0 / figure.get_figheight()))
    save(figure, path)
