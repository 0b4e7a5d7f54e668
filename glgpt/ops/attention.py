"""Causal attention over caches of keys and values (Vaswani et al. 2017).

The heads of a row are stored next to each other, each padded to whole texels. Row `t * n_head + head` of scores is for
token t and one head, and its columns are the keys. Row tiles split the tokens into ranges: a fragment computes one
token of each range, for one head, and fetches each key once for all these tokens. The runtime scalar `pos` is the
position of the first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.partial_sums import EACH_NEW_ROW, AttendedRow, Defines, Normed, PartialSums, Row, Rows
from glgpt.ops.pointwise import MASKED, copy, plus
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, one_layer
from glgpt.program.recorder import Cost, Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

# Patterns for `set_pattern`: a head attends to all tokens so far equally, to the previous token, or to the first token.
PATTERNS = ("uniform", "previous", "first")


@dataclass(frozen=True)
class ScoreLimits:
    """Limits of scores: a query attends to the last `window` keys, and scores are soft-capped to cap * tanh(x / cap).

    A `window` or `cap` of 0 sets no limit.
    """

    window: int = 0
    cap: float = 0.0

    @property
    def defines(self) -> dict[str, int | float]:
        """Returns the defines of `limited.glsl`."""
        window: dict[str, int | float] = {"WINDOW": self.window} if self.window else {}
        return window | ({"CAP": self.cap} if self.cap else {})


UNLIMITED = ScoreLimits()
KEYS, RANGES = 128, 8  # attention of one row: minimum number of keys in a range, and maximum number of ranges
# The same for `attend_ranges`, in which the number of keys in a range depends on the position.
ROW_KEYS, ROW_RANGES = 16, 8


def split_qkv(
    rec: Recorder,
    x: Tensor | PartialSums,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    label: str,
    normed: Normed | None = None,
    rows: Rows | None = None,
) -> None:
    """Records the split of x `[T, 3 * n_head * d]` into states q, k and v `[context, n_head * d]`, from row `pos` on.

    If x is partial sums, this op adds them up and applies the norm `normed`, as `combine` does. With `rows`, the states
    are written from the row in the scalar `row` on. Instead of states, q, k and v may be scratch tensors with the same
    rows as x; the op has a gradient only then.
    """
    inputs, defines = norm_inputs(normed)
    if isinstance(x, PartialSums):
        inputs, defines = x.inputs | inputs, x.at | defines | (EACH_NEW_ROW if rows else {})
    else:
        inputs = {"x": x}
    outputs = {"q": q, "k": k, "v": v}
    if q.role == "state":
        window = Window((q.layout.width, x.rows), "row" if rows else "pos")
        rec.emit("split_qkv", inputs, outputs, defines, label=label, window=window)
        return
    rec.emit("split_qkv", inputs, outputs, defines, label=label)

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dx = rec.scratch(f"d.{label}", inputs["x"].layout)
        rec.emit("join_qkv", {"q": d[0], "k": d[1], "v": d[2]}, {"y": dx})
        return [plus(rec, dx, sums[0])]

    rec.differentiable((q, k, v), (inputs["x"],), vjp)


def score_tiles(rec: Recorder, rows: int, batch: int, n_head: int, least: int) -> int:
    """Returns the number of row tiles for `rows` positions of each sequence: the first multiple of `least` that fits.

    A number of tiles fits if the tiles of the scores are not higher than the texture limit and, for several sequences
    (`batch` > 1), if the number divides `rows` evenly. Returns `least` if no number fits.
    """
    fitting = (
        tiles
        for tiles in range(least, rows + 1, least)
        if -(-rows // tiles) * n_head * batch <= rec.limits.max_texture_size and (batch == 1 or rows % tiles == 0)
    )
    return next(fitting, least)


@dataclass(frozen=True)
class AttentionRows:
    """The rows of an attention op: `positions` positions of each of `batch` sequences, with `n_head` heads each.

    The rows of position t, one for each sequence, come before the rows of position t + 1: queries, keys and values of
    sequence s at position t are in row t * batch + s.
    """

    positions: int
    n_head: int
    scale: float = 1.0  # factor by which scores are multiplied
    batch: int = 1
    limits: ScoreLimits = UNLIMITED
    keys: int = 0  # keys at positions from `pos` + `keys` on are not drawn (`Window.keys`); 0: all are drawn


def scores(
    rec: Recorder,
    q: Tensor,
    k: Tensor,
    rows: AttentionRows,
    tile_rows: int,
    name: str,
    masked: float = MASKED,
    to_position: bool = False,
) -> Tensor:
    """Records scores[t * n_head + head, s] = scale * q[pos + t] . k[s] for each position t, with the limits of `rows`.

    Scores of keys to which the query does not attend (s > pos + t, or before the window) have the value `masked`.

    If q or k has fewer heads than `n_head`, neighbouring heads of scores share a head of q or k (grouped-query
    attention, Ainslie et al. 2023). The gradient assumes that `pos` is 0 and that q and k have rows for these positions
    only. With `to_position`, a fragment writes nothing if its keys are after the positions of all its rows, which saves
    time in the early chunks of a prompt. With `rows.keys`, the pass instead draws no keys at positions from `pos` +
    `rows.keys` on, whatever the row; `to_position` is then ignored.
    """
    count, n_head, batch = rows.positions, rows.n_head, rows.batch
    padded = -(-count // tile_rows) * tile_rows
    y = rec.scratch(name, Layout(padded * n_head * batch, k.rows // batch, (tile_rows, 1)))
    width = max(q.cols, k.cols)  # values of all heads
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": width // n_head // 4, "SCALE": rows.scale, "MASKED": masked}
    defines |= {"Q_GROUP": width // q.cols, "K_GROUP": width // k.cols} | _to_position(to_position and not rows.keys)
    defines |= rows.limits.defines
    window = Window((y.layout.width, y.layout.height), keys=rows.keys)
    rec.emit("scores", {"q": q, "k": k}, {"y": y}, defines, window=window, cost=Cost(2 * count * k.rows * width))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        ds = _soft_cap_vjp(rec, d[0], y, rows.limits.cap) if rows.limits.cap else d[0]
        dq = attend(rec, ds, k, rows, f"d.{q.name}", "f32", width // k.cols)
        dk = _attend_vjp(rec, ds, q, rows, f"d.{k.name}", width // k.cols)
        return [plus(rec, dq, sums[0]), plus(rec, dk, sums[1])]

    rec.differentiable(y, (q, k), vjp)
    return y


def _soft_cap_vjp(rec: Recorder, dy: Tensor, y: Tensor, cap: float) -> Tensor:
    """Records the gradient of scores before their soft cap, from the gradient of the capped scores y."""
    dx = rec.scratch(f"{dy.name}.uncapped", dy.layout)
    rec.emit("soft_cap_vjp", {"x": dy, "y": y}, {"d": dx}, {"CAP": cap})
    return dx


def _attend_vjp(rec: Recorder, x: Tensor, dz: Tensor, rows: AttentionRows, name: str, group: int) -> Tensor:
    """Records the gradient of keys or values: y[s] = scale * sum over t of x[t, s] dz[t], per head and sequence.

    For values, x is the pattern and dz the gradient of the output; for keys, x is the gradient of the scores and dz the
    queries. `group` heads share one head of keys and values, which gets the sum of their gradients.
    """
    n_head, batch = rows.n_head, rows.batch
    transposed = rec.scratch(f"{x.name}.transposed", x.layout)
    rec.emit("transpose_pattern", {"x": x}, {"y": transposed}, {"N_HEAD": n_head * batch, "ROWS": dz.rows // batch})
    y = rec.scratch(name, Layout(dz.rows, dz.cols // group, (x.layout.tiles[0], 1)))
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": dz.cols // n_head // 4, "SCALE": rows.scale, "GROUP": group}
    rec.emit("attend_vjp", {"x": transposed, "dz": dz}, {"y": y}, defines, cost=Cost(2 * dz.rows * x.cols * dz.cols))
    return y


def softmax(
    rec: Recorder,
    x: Tensor,
    n_head: int,
    name: str,
    dtype: str = "f32",
    to_position: bool = False,
    keys: int = 0,
) -> Tensor:
    """Records the softmax of each row of scores over the keys up to the row's position; values of later keys are zero.

    `n_head` consecutive rows have the same position. The result and the gradient of the scores are stored as `dtype`;
    sums are f32. `to_position` works as in `scores`. With `keys`, keys at positions from `pos` + `keys` on are not
    drawn, and `to_position` is ignored. If `dtype` is packed, a texel holds keys of several column tiles; `keys` is
    then ignored, and `to_position` is not.
    """
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * min(2, -(-x.cols // 4)), x.layout.tiles))
    rec.emit("softmax_stats", {"x": x}, {"y": stats}, {"N_HEAD": n_head})
    tiles = x.layout.tiles[0], FORMATS[dtype].column_tiles_per_texel
    y = rec.scratch(name, Layout(x.rows, x.cols, tiles, dtype))
    if tiles[1] > 1:
        keys = 0
    defines, window = _to_position(to_position and not keys), Window((y.layout.width, y.layout.height), keys=keys)
    rec.emit("softmax", {"x": x, "stats": stats}, {"y": y}, {"N_HEAD": n_head, **defines}, window=window)

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        inputs = {"x": y, "dy": d[0]}
        sums_by_slice = rec.scratch(f"d.{x.name}.stats", stats.layout)
        rec.emit("softmax_vjp_stats", inputs, {"y": sums_by_slice}, {"N_HEAD": n_head})
        dx = rec.scratch(f"d.{x.name}", y.layout)
        rec.emit("softmax_vjp", inputs | {"stats": sums_by_slice}, {"y": dx}, {"N_HEAD": n_head})
        return [plus(rec, dx, sums[0])]

    rec.differentiable(y, (x,), vjp)
    return y


def _to_position(ends_there: bool) -> dict[str, int]:
    return {"TO_POSITION": 1} if ends_there else {}


def set_pattern(rec: Recorder, x: Tensor, how: Tensor, n_head: int) -> Tensor:
    """Records a copy of the pattern x `[T * n_head, keys]` in which some heads attend as one of `PATTERNS` specifies.

    `how` has a texel for each head: 0 leaves the pattern of the head unchanged, and k selects `PATTERNS[k - 1]`. The op
    is not differentiable.
    """
    y = rec.scratch(x.name, x.layout)
    rec.emit("set_pattern", {"x": x, "how": how}, {"y": y}, {"N_HEAD": n_head}, label=f"{x.name}.edit")
    return y


def attend(
    rec: Recorder,
    pattern: Tensor,
    v: Tensor,
    rows: AttentionRows,
    name: str,
    dtype: str,
    group: int = 1,
) -> Tensor:
    """Records z[t] = scale * sum over s of pattern[t, s] v[s] for each head: `[T, n_head * d]`, stored as `dtype`.

    `pattern` has a row for each token and head, as `scores` has. `group` neighbouring heads share one head of v. Raises
    ValueError if the rows of several sequences cannot be split evenly into the row tiles of the pattern.
    """
    count, n_head, batch = rows.positions, rows.n_head, rows.batch
    tr = pattern.layout.tiles[0]
    if batch > 1 and count % tr:
        raise ValueError(f"{name}: {count} rows of {batch} sequences cannot be split into {tr} equal tiles")
    width = v.cols * group
    y = rec.scratch(name, Layout(count * batch, width, (tr, FORMATS[dtype].column_tiles_per_texel), dtype))
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": width // n_head // 4, "SCALE": rows.scale, "GROUP": group}
    rec.emit("attend", {"x": pattern, "v": v}, {"y": y}, defines, cost=Cost(2 * count * v.rows * width))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dz = d[0]
        if dz.layout.layers > 1:
            dz = copy(rec, dz, one_layer(y.rows, y.cols, dz.layout.dtype), dz.name)
        dp = scores(rec, dz, v, replace(rows, limits=UNLIMITED), tr, f"d.{pattern.name}", 0.0)
        dv = _attend_vjp(rec, pattern, dz, rows, f"d.{v.name}", group)
        return [plus(rec, dp, sums[0]), plus(rec, dv, sums[1])]

    rec.differentiable(y, (pattern, v), vjp)
    return y


def attend_row(
    rec: Recorder,
    score: Tensor,
    v: Tensor,
    n_head: int,
    name: str,
    least: int = KEYS,
    group: int = 1,
    rows: Rows | None = None,
) -> Row:
    """Records the softmax of one row's scores `[n_head, context]`, and z (as in `attend`).

    The columns of one row of z do not fill a GPU, so ranges of at least `least` keys are computed in parallel. The
    result is then an `AttendedRow`, and the product that reads it combines the ranges. On software GL, one range of all
    keys is faster; with one range, the result is z. `group` heads share one head of v. With `rows`, the scores are
    `[size * n_head, context]`; the result is then z of each text, `[size, n_head * d]`, and another pass combines the
    ranges if there are several.
    """
    keys = max(least, 16 * -(-score.cols // (16 * RANGES)))
    ranges = -(-score.cols // keys)
    layout = Layout(ranges * (rows.size if rows else 1), v.cols * group)
    y, logs = rec.scratch(name, layout), rec.scratch(f"{name}.logs", layout)
    outputs = {"y": y, "logs": logs} if ranges > 1 else {"y": y}
    inputs, defines = {"x": score, "v": v}, {"D4": layout.cols // n_head // 4, "KEYS": keys, "GROUP": group}
    if rows:
        inputs |= {"places": rows.places, "table": rows.table}
        defines |= {"N_HEAD": n_head, "RANGES": ranges}
    rec.emit("attend_row", inputs, outputs, defines, cost=Cost(2 * score.rows // n_head * score.cols * layout.cols))
    if ranges == 1:
        return y
    if not rows:
        return AttendedRow(y, logs, {"KEYS": keys})
    weighed = rec.scratch(f"{name}.weighed", Layout(rows.size, layout.cols))
    inputs = {"x": y, "logs": logs, "places": rows.places}
    rec.emit("weigh_ranges", inputs, {"y": weighed}, {"KEYS": keys, "RANGES": ranges})
    return weighed


def attend_ranges(
    rec: Recorder, score: Tensor, v: Tensor, n_head: int, name: str, group: int = 1, window: int = 0
) -> AttendedRow:
    """Records the same as `attend_row` for one row, in ranges whose number of keys depends on the position.

    So the keys of a short text are divided into several ranges, too. `window` is the number of latest keys to which the
    row attends (0: all keys).
    """
    layout = Layout(ROW_RANGES, v.cols * group)
    y, logs = rec.scratch(name, layout), rec.scratch(f"{name}.logs", layout)
    ranges: Defines = {"D4": layout.cols // n_head // 4, "RANGES": ROW_RANGES, "RANGE_KEYS": ROW_KEYS}
    ranges |= {"WINDOW": window} if window else {}
    cost = Cost(2 * score.cols * layout.cols)
    rec.emit("attend_row", {"x": score, "v": v}, {"y": y, "logs": logs}, ranges | {"GROUP": group}, cost=cost)
    return AttendedRow(y, logs, ranges)


def scores_rows(
    rec: Recorder,
    q: Tensor,
    k: Tensor,
    n_head: int,
    scale: float,
    name: str,
    rows: Rows,
    limits: ScoreLimits = UNLIMITED,
) -> Tensor:
    """Records scores[i * n_head + head, s] = scale * q[row + i] . key s of text i; `MASKED` after the text's position.

    Scores of keys before the window of `limits` are `MASKED` too. Returns the scores `[size * n_head, context]`. The
    queries are the rows of the state q from row `row` on.
    """
    y = rec.scratch(name, Layout(rows.size * n_head, rows.table.cols))
    defines = {"N_HEAD": n_head, "D4": q.cols // n_head // 4, "SCALE": scale, "MASKED": MASKED}
    inputs = {"q": q, "k": k, "places": rows.places, "table": rows.table}
    cost = Cost(2 * rows.size * rows.table.cols * q.cols)
    rec.emit("scores_rows", inputs, {"y": y}, defines | {"K_GROUP": q.cols // k.cols, **limits.defines}, cost=cost)
    return y


def adopt(rec: Recorder, k: Tensor, v: Tensor, shared_k: Tensor, shared_v: Tensor, size: int) -> None:
    """Records a copy of `size` rows of one text's keys and values, from row `pos` on, to the shared states.

    The rows of the copy begin at row `row`. To copy in the other direction, pass the shared states as k and v, and the
    states of the text as `shared_k` and `shared_v`.
    """
    inputs, outputs = {"k": k, "v": v}, {"shared_k": shared_k, "shared_v": shared_v}
    rec.emit("adopt", inputs, outputs, label=shared_k.name, window=Window((k.layout.width, size), "row"))
