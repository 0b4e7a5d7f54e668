"""The ops that training adds to GPT-2's, in float64 numpy and written independently of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.models.families.gpt2 import GPT2Config
from helpers import reference as ref

Array = NDArray[np.float64]


def embed(ids: NDArray[np.int64], wte: Array, wpe: Array, batch: int) -> Array:
    """Embeds the ids of `batch` sequences. Row t * batch + i holds position t of sequence i."""
    return wte[:, ids].T + np.repeat(wpe[: len(ids) // batch], batch, axis=0)


def _apart(x: Array, batch: int, n_head: int) -> Array:
    """Returns `[t * batch + sequence, n_head * d]` as `[batch, n_head, t, d]`."""
    return x.reshape(-1, batch, n_head, x.shape[1] // n_head).transpose(1, 2, 0, 3)


def _score_rows(x: Array) -> Array:
    """Returns `[batch, n_head, t, s]` as rows `(t * batch + sequence) * n_head + head`."""
    return x.transpose(2, 0, 1, 3).reshape(-1, x.shape[3])


def scores(q: Array, k: Array, n_head: int, scale: float, batch: int) -> Array:
    """Returns causal scores from position 0. Scores of keys after a row's position are MASKED."""
    y = scale * _apart(q, batch, n_head) @ _apart(k, batch, n_head).transpose(0, 1, 3, 2)
    return _score_rows(np.where(np.tri(y.shape[2], dtype=bool), y, ref.MASKED))


def softmax(x: Array, share: int) -> Array:
    """Returns the softmax of each row of scores up to its position; `share` consecutive rows have the same position."""
    return ref.softmax(np.where(np.arange(x.shape[1]) <= np.arange(len(x))[:, None] // share, x, -np.inf))


def attend(pattern: Array, v: Array, n_head: int, batch: int, scale: float) -> Array:
    """Attends causally: values of a pattern beyond a row's position are ignored."""
    cube = pattern.reshape(-1, batch, n_head, pattern.shape[1]).transpose(1, 2, 0, 3)
    z = scale * np.tril(cube) @ _apart(v, batch, n_head)
    return z.transpose(2, 0, 1, 3).reshape(len(v), v.shape[1])


def cross_entropy(x: Array, targets: NDArray[np.int64]) -> float:
    """Returns the sum over rows of -log softmax(x)[target]; negative targets are ignored."""
    counted = np.flatnonzero(targets >= 0)
    return float((np.logaddexp.reduce(x[counted], axis=1) - x[counted, targets[counted]]).sum())


def prediction(x: Array, targets: NDArray[np.int64]) -> Array:
    """Returns (-log softmax(x)[target], rank of the target, probability of the likeliest, 1); zeros if target < 0."""
    found = np.zeros((len(x), 4))
    for row, target in enumerate(targets):
        if target >= 0:
            total = np.logaddexp.reduce(x[row])
            order = np.argsort(-x[row], kind="stable").tolist()
            found[row] = total - x[row, target], order.index(target), np.exp(x[row].max() - total), 1
    return found


def mean_loss(
    config: GPT2Config, weights: Mapping[str, NDArray[Any]], inputs: NDArray[np.int64], targets: NDArray[np.int64]
) -> float:
    """Returns a whole GPT-2's loss of sequences `[n, t]`: the mean over the targets that are not negative."""
    pairs = zip(inputs, targets, strict=True)
    total = sum(cross_entropy(ref.gpt2(config, weights, x.tolist())["logits"], y) for x, y in pairs)
    return total / int((targets >= 0).sum())


def kept(rows: int, cols: int, rate: float, site: int, seed: int, step: int, part: int) -> Array:
    """Returns the factors of dropout: 0, or 1 / (1 - rate)."""
    shares = np.stack(_hashed(rows, cols, site, part, seed, step), axis=-1).reshape(rows, -1)[:, :cols]
    return np.where(shares < 1 - rate, 1 / (1 - rate), 0.0)


def normal(rows: int, cols: int, mean: float, spread: float, site: int, seed: int) -> Array:
    """Returns normally distributed numbers from the hash that dropout uses, by the Box-Muller transform."""
    lanes: list[Array] = []
    h = [share + 0.5 / 2**24 for share in _hashed(rows, cols, site, 0, seed, 0)]
    for u, v in (h[:2], h[2:]):
        lanes += [np.sqrt(-2 * np.log(u)) * turn(2 * np.pi * v) for turn in (np.cos, np.sin)]
    return mean + spread * np.stack(lanes, axis=-1).reshape(rows, -1)[:, :cols]


def _hashed(rows: int, cols: int, site: int, part: int, seed: int, step: int) -> list[Array]:
    """Returns four numbers of 24 bits for each texel, 0 <= x < 1, by applying pcg4d twice in integers mod 2^32."""
    row, c4 = np.meshgrid(np.arange(rows), np.arange(-(-cols // 4)), indexing="ij")
    place = _pcg4d([row, c4, np.full_like(row, site), np.full_like(row, part)])
    keyed = [value ^ key for value, key in zip(place, (seed, step, 0, 0), strict=True)]
    return [(value >> 8) / 2**24 for value in _pcg4d(keyed)]


def _pcg4d(values: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    def stirred(v: list[Any]) -> list[Any]:
        for i, a, b in ((0, 1, 3), (1, 2, 0), (2, 0, 1), (3, 1, 2)):
            v[i] = (v[i] + v[a] * v[b]) & 0xFFFFFFFF
        return v

    mixed = stirred([(v.astype(np.uint64) * 1664525 + 1013904223) & 0xFFFFFFFF for v in values])
    return [v.astype(np.int64) for v in stirred([v ^ (v >> 16) for v in mixed])]


def gradient_norm(gradients: Sequence[Array], clip: float) -> tuple[float, float]:
    """Returns the norm of all gradients together, and the factor for clipping."""
    norm = float(np.sqrt(sum((g**2).sum() for g in gradients)))
    return norm, min(1.0, clip / (norm + 1e-6)) if clip else 1.0


def adamw(
    x: Array, m: Array, s: Array, g: Array, lr: float, betas: tuple[float, float], eps: float, decay: float, step: int
) -> tuple[Array, Array, Array]:
    """Returns parameter and moments after one step (Loshchilov and Hutter 2019)."""
    m = betas[0] * m + (1 - betas[0]) * g
    s = betas[1] * s + (1 - betas[1]) * g**2
    unbiased = m / (1 - betas[0] ** step) / (np.sqrt(s / (1 - betas[1] ** step)) + eps)
    return x - lr * (decay * x + unbiased), m, s


def slope(
    function: Callable[..., tuple[Array, ...]],
    inputs: Mapping[str, Array],
    name: str,
    direction: Array,
    dys: Sequence[Array],
    h: float = 1e-5,
) -> float:
    """Returns <dy, f(x + h v) - f(x - h v)> / 2h, the central difference along v = `direction` of one input."""
    after, before = (function(**{**inputs, name: inputs[name] + s * h * direction}) for s in (1, -1))
    return sum(float((dy * (a - b)).sum()) for dy, a, b in zip(dys, after, before, strict=True)) / (2 * h)
