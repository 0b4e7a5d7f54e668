"""Draws the loss curve of a training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from glgpt.plots.figure import save, styled
from glgpt.plots.fonts import drawable


@styled
def loss_curve(training: np.ndarray, validation: np.ndarray, title: str, path: Path) -> None:
    """Draws the losses of a run. `training` and `validation` are [n, 2]: each row is (step, loss in nats per token).

    A thin line shows the training loss of every step; a thicker line shows its running mean over 1/50 of the steps.
    """
    figure = Figure(figsize=(7.5, 4.2))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    training = training[np.isfinite(training).all(axis=1)]
    if len(training):
        steps, losses = training.T
        axes.plot(steps, losses, color="#9bb8d3", lw=0.7, label="training, each batch")
        reach = max(1, len(losses) // 50)
        sums = np.concatenate(([0.0], np.cumsum(losses)))
        middle = np.arange(len(losses))
        begins, ends = np.maximum(0, middle - reach // 2), np.minimum(len(losses), middle + reach // 2 + 1)
        mean = (sums[ends] - sums[begins]) / (ends - begins)
        axes.plot(steps, mean, color="#1f5a8c", lw=1.6, label="training, running mean")
    if len(validation):
        axes.plot(*validation.T, "o-", color="#c8502e", ms=4, lw=1.4, label=f"validation, now {validation[-1, 1]:.3f}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(drawable(title))
    axes.grid(color="#e6e6e9", lw=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(training) or len(validation):
        axes.legend(frameon=False)
    save(figure, path)
