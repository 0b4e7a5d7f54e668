"""Every op and the whole of GPT-2 in float64 numpy, written independently of the engine, as a reference for shaders."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from glgpt.models.families.gpt2 import GPT2Config

Array = NDArray[np.float64]
MASKED = -1.0e30


def embed(ids: NDArray[np.int64], wte: Array, wpe: Array, pos: int) -> Array:
    """Embeds ids; wte is `[C, vocab]`."""
    return wte[:, ids].T + wpe[pos : pos + len(ids)]


def edit(x: Array, held: Mapping[str, Array], rows: NDArray[np.int64]) -> Array:
    """Returns x * gain + shift, with `rows` of gain and shift; row 0 leaves x unchanged."""
    changed = x * held["gain"][rows] + held["shift"][rows]
    return np.where(rows[:, None] > 0, changed, x)


def set_pattern(x: Array, how: Array, n_head: int, pos: int) -> Array:
    """Sets row `t * n_head + head` of a pattern by how[head]: 0 leaves it unchanged, n sets ops.PATTERNS[n - 1]."""
    y = x.copy()
    for row in range(len(x)):
        t, kind = pos + row // n_head, how[row % n_head]
        if kind:
            y[row] = 0
            y[row, {1: slice(t + 1), 2: max(t - 1, 0), 3: 0}[kind]] = 1 / (t + 1) if kind == 1 else 1
    return y


def moments(x: Array) -> tuple[Array, Array]:
    """Returns mean and summed squared deviations by row."""
    mean = x.mean(axis=-1)
    return mean, ((x - mean[..., None]) ** 2).sum(axis=-1)


def norm(x: Array, gain: Array, bias: Array, eps: float) -> Array:
    mean, squares = moments(x)
    return (x - mean[:, None]) / np.sqrt(squares / x.shape[1] + eps)[:, None] * gain + bias


def norm_fold(gain: Array, bias: Array, w: Array, shift: Array) -> tuple[Array, Array]:
    """Folds a norm into a linear layer; gain and bias are `[1, K]`, shift is `[1, N]`."""
    return gain @ w, bias @ w + shift


def finish_norm(product: Array, row: Array, gain_w: Array, bias_w: Array, eps: float) -> Array:
    """Returns norm(row) @ w + shift, from `product` = (row * gain) @ w and the results of `norm_fold`."""
    mean, squares = moments(row)
    return (product - mean * gain_w) / math.sqrt(squares[0] / row.shape[1] + eps) + bias_w


def act(x: Array, kind: str | None) -> Array:
    if kind == "gelu_new":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if kind == "gelu":
        return x * 0.5 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2))
    return np.maximum(x, 0) if kind == "relu" else x


def matmul(
    x: Array, w: Array, bias: Array | None = None, kind: str | None = None, residual: Array | None = None
) -> Array:
    y = x @ w if bias is None else x @ w + bias
    return act(y, kind) if residual is None else act(y, kind) + residual


def heads(x: Array, n_head: int) -> Array:
    """Returns `[T, n_head * d]` as `[n_head, T, d]`."""
    return x.reshape(len(x), n_head, -1).transpose(1, 0, 2)


def split_qkv(x: Array) -> tuple[Array, Array, Array]:
    q, k, v = np.split(x, 3, axis=1)
    return q, k, v


def scores(q: Array, k: Array, n_head: int, scale: float, pos: int, rows: int) -> Array:
    """Returns scores `[n_head, rows, keys]`. Scores of keys after a row's position are MASKED."""
    y = scale * heads(q[pos : pos + rows], n_head) @ heads(k, n_head).transpose(0, 2, 1)
    return np.where(np.arange(len(k)) <= pos + np.arange(rows)[:, None], y, MASKED)


def softmax(score: Array) -> Array:
    y = np.exp(score - score.max(axis=-1, keepdims=True))
    return y / y.sum(axis=-1, keepdims=True)


def attend(pattern: Array, v: Array) -> Array:
    """Returns `[rows, n_head * d]` from a pattern `[n_head, rows, keys]` and v `[keys, n_head * d]`."""
    z = pattern @ heads(v, len(pattern))
    return z.transpose(1, 0, 2).reshape(z.shape[1], -1)


def attend_ranges(score: Array, v: Array, keys: int) -> tuple[Array, Array]:
    """Attends for one row in ranges of keys; returns each range's result and the log of its summed exponentials.

    Shapes: score `[n_head, 1, reached]`, v `[reached, n_head * d]`, results `[ranges, n_head * d]`, and logs
    `[ranges, n_head]`.
    """
    starts = range(0, score.shape[2], keys)
    values = [attend(softmax(score[:, :, s : s + keys]), v[s : s + keys])[0] for s in starts]
    logs = [np.logaddexp.reduce(score[:, 0, s : s + keys], axis=1) for s in starts]
    return np.array(values), np.array(logs)


def nats_of(logits: NDArray[Any], targets: NDArray[np.int64]) -> float:
    """Returns the summed cross-entropy of `targets` [T] given `logits` [T, vocab]."""
    rows = logits.astype(np.float64)
    return float((np.logaddexp.reduce(rows, axis=1) - rows[np.arange(len(rows)), targets]).sum())


def argmax(x: Array) -> int:
    return int(np.argmax(x))


def gpt2(config: GPT2Config, weights: Mapping[str, NDArray[Any]], ids: list[int]) -> dict[str, Array]:
    """Runs the forward pass. Returns all activations by name (such as `h.0.attn.q`), in the order of computation."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    kind, eps, found = config.activation_function, config.layer_norm_epsilon, dict[str, Array]()
    x = found["embed"] = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    for i in range(config.n_layer):
        h = f"h.{i}."

        def linear(y: Array, name: str, h: str = h) -> Array:
            return y @ w[h + name + ".weight"] + w[h + name + ".bias"]

        scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= i + 1
        y = found[h + "ln_1"] = norm(x, w[h + "ln_1.weight"], w[h + "ln_1.bias"], eps)
        q, k, v = split_qkv(linear(y, "attn.c_attn"))
        for part, value in zip("qkv", (q, k, v), strict=True):
            found[h + "attn." + part] = heads(value, config.n_head)
        y = scores(q, k, config.n_head, scale, 0, len(ids))
        y = found[h + "attn.scores"] = np.where(y == MASKED, -np.inf, y)
        y = found[h + "attn.pattern"] = softmax(y)
        y = found[h + "attn.z"] = attend(y, v)
        y = found[h + "attn.out"] = linear(y, "attn.c_proj")
        x = found[h + "resid_mid"] = x + y
        y = found[h + "ln_2"] = norm(x, w[h + "ln_2.weight"], w[h + "ln_2.bias"], eps)
        y = found[h + "mlp.pre"] = linear(y, "mlp.c_fc")
        y = found[h + "mlp.act"] = act(y, kind)
        y = found[h + "mlp.out"] = linear(y, "mlp.c_proj")
        x = found[h + "resid_post"] = x + y
    y = found["ln_f"] = norm(x, w["ln_f.weight"], w["ln_f.bias"], eps)
    found["logits"] = y @ w["wte.weight" if config.tie_word_embeddings else "lm_head.weight"].T
    return found


def random_weights(config: GPT2Config, seed: int = 0, spread: float = 0.3) -> dict[str, NDArray[np.float32]]:
    """Returns weights large enough that heads attend to few tokens and activations are not linear. Gains are near 1."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in ((p.name, p.shape) for p in config.parameters.values()):
        values = rng.standard_normal(shape, np.float32) * np.float32(spread)
        found[name] = values + np.float32(1) if ".ln_" in f".{name}" and name.endswith("weight") else values
    return found


def save_checkpoint(folder: Path, config: GPT2Config, weights: Mapping[str, NDArray[Any]]) -> Path:
    """Writes `config.json` and `model.safetensors`; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | asdict(config)))
    save_file(dict(weights), folder / "model.safetensors")
    return folder


def within(
    ours: NDArray[Any], ref: NDArray[Any], atol: float | NDArray[Any], rtol: float = 0.0, where: str = ""
) -> None:
    """Fails unless |ours - ref| <= atol + rtol |ref| everywhere, with infinities and NaN in the same places."""
    assert ours.shape == ref.shape, f"{where}: {ours.shape} is not {ref.shape}"
    finite = np.isfinite(ref)
    same = (ours == ref) | (np.isnan(ours) & np.isnan(ref))
    assert same[~finite].all(), f"{where}: NaN or infinities in other places"
    allowed = np.broadcast_to(atol, ref.shape)[finite] + rtol * np.abs(ref[finite])
    off = np.abs(ours[finite].astype(np.float64) - ref[finite]) - allowed
    assert not off.size or off.max() <= 0, f"{where}: {off.max():.2e} further off than allowed"
    assert np.isfinite(ours[finite]).all(), f"{where}: not finite"
