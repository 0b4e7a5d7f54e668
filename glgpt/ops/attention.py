"""Causal attention over caches of keys and values (Vaswani et al. 2017).

Heads are stored side by side in a row, each padded to whole texels. Score rows are `t * n_head + head`, cut into
distant tiles of t, so that the fragments of one head share the keys they fetch. The runtime scalar `pos` is the
position of the first row.
"""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.partial_sums import EACH_NEW_ROW, AttendedRow, Normed, PartialSums, Row, Rows
from glgpt.ops.pointwise import copy, plus
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, one_layer
from glgpt.program.recorder import Cost, Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

PATTERNS = ("uniform", "previous", "first")  # of `set_pattern`: all tokens so far alike, the token before, the first
MASKED = -1.0e30  # finite, so that no shader meets an infinity it did not make
KEYS, RANGES = 128, 8  # one row attends by ranges of so many keys at least, so many ranges at most


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
    """Writes rows pos.. of the states q, k, v `[context, n_head * d]` from x `[T, 3 * n_head * d]`.

    Partial sums of one row come with `normed`, and are finished here as in `combine`; with `rows`, they go to
    rows row... Where q, k and v are scratch,
    they hold the rows of x.
    """
    inputs, defines = norm_inputs(normed)
    if isinstance(x, PartialSums):
        inputs, defines = x.inputs | inputs, x.defines | defines | (EACH_NEW_ROW if rows else {})
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
    """Row tiles for `rows` positions of each sequence: `least`, or as many times that as let their scores fit.

    With a `batch` they divide the rows.
    """
    fitting = (
        tiles
        for tiles in range(least, rows + 1, least)
        if -(-rows // tiles) * n_head * batch <= rec.limits.max_texture_size and (batch == 1 or rows % tiles == 0)
    )
    return next(fitting, least)


def scores(
    rec: Recorder,
    q: Tensor,
    k: Tensor,
    rows: int,
    tile_rows: int,
    n_head: int,
    scale: float,
    name: str,
    batch: int = 1,
    masked: float = MASKED,
    to_position: bool = False,
) -> Tensor:
    """scores[t * n_head + head, s] = scale * q[pos + t] . k[s] per head for `rows` rows t, `masked` where s > pos + t.

    Where q or k has fewer heads than `n_head`, neighbouring heads share one (grouped-query attention, Ainslie et al.
    2023). With a `batch`, rows of q and k are t * batch + sequence, and each of `rows` rows t stands for all
    sequences. It is differentiated from position 0, with the q and k of just these rows. With `to_position`, texels
    beyond the position of every row that shares a fragment are not written: a chunk of a prompt needs few of the keys.
    """
    padded = -(-rows // tile_rows) * tile_rows
    y = rec.scratch(name, Layout(padded * n_head * batch, k.rows // batch, (tile_rows, 1)))
    width = max(q.cols, k.cols)  # of all heads
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": width // n_head // 4, "SCALE": scale, "MASKED": masked}
    defines |= {"Q_GROUP": width // q.cols, "K_GROUP": width // k.cols} | _to_position(to_position)
    rec.emit("scores", {"q": q, "k": k}, {"y": y}, defines, cost=Cost(2 * rows * k.rows * width))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dq = attend(rec, d[0], k, rows, n_head, f"d.{q.name}", "f32", batch, scale, width // k.cols)
        dk = _attend_vjp(rec, d[0], q, n_head, f"d.{k.name}", batch, scale, width // k.cols)
        return [plus(rec, dq, sums[0]), plus(rec, dk, sums[1])]

    rec.differentiable(y, (q, k), vjp)
    return y


def _attend_vjp(
    rec: Recorder, x: Tensor, dz: Tensor, n_head: int, name: str, batch: int, scale: float, group: int
) -> Tensor:
    """y[s] = scale * sum over t of x[t, s] dz[t], per head and sequence: the gradient of keys or values.

    `group` heads share one head of keys and values, which gets the sum of theirs.
    """
    transposed = rec.scratch(f"{x.name}.transposed", x.layout)
    rec.emit("transpose_pattern", {"x": x}, {"y": transposed}, {"N_HEAD": n_head * batch, "ROWS": dz.rows // batch})
    y = rec.scratch(name, Layout(dz.rows, dz.cols // group, (x.layout.tiles[0], 1)))
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": dz.cols // n_head // 4, "SCALE": scale, "GROUP": group}
    rec.emit("attend_vjp", {"x": transposed, "dz": dz}, {"y": y}, defines, cost=Cost(2 * dz.rows * x.cols * dz.cols))
    return y


def softmax(rec: Recorder, x: Tensor, n_head: int, name: str, dtype: str = "f32", to_position: bool = False) -> Tensor:
    """The softmax of each row of scores up to its position, zero beyond; `n_head` rows have the same position.

    It is stored as `dtype`, and so is the gradient of the scores; sums are f32. `to_position` is as in `scores`.
    """
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * min(2, -(-x.cols // 4)), x.layout.tiles))
    rec.emit("softmax_stats", {"x": x}, {"y": stats}, {"N_HEAD": n_head})
    tiles = x.layout.tiles[0], FORMATS[dtype].column_tiles_per_texel
    y = rec.scratch(name, Layout(x.rows, x.cols, tiles, dtype))
    rec.emit("softmax", {"x": x, "stats": stats}, {"y": y}, {"N_HEAD": n_head} | _to_position(to_position))

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
    """A pattern `[T n_head, keys]` in which heads look where `how` says.

    `how` has a texel for each head: 0 leaves its pattern, k stands for `PATTERNS[k - 1]`. There is no derivative.
    """
    y = rec.scratch(x.name, x.layout)
    rec.emit("set_pattern", {"x": x, "how": how}, {"y": y}, {"N_HEAD": n_head}, label=f"{x.name}.edit")
    return y


def attend(
    rec: Recorder,
    pattern: Tensor,
    v: Tensor,
    rows: int,
    n_head: int,
    name: str,
    dtype: str,
    batch: int = 1,
    scale: float = 1.0,
    group: int = 1,
) -> Tensor:
    """z[t] = scale * sum over s of pattern[t, s] v[s], per head, `[rows, n_head * d]`; rows as in `scores`.

    `group` neighbouring heads share one head of v.
    """
    tr = pattern.layout.tiles[0]
    if batch > 1 and rows % tr:
        raise ValueError(f"{name}: {rows} rows of {batch} sequences are not cut into {tr} tiles")
    width = v.cols * group
    y = rec.scratch(name, Layout(rows * batch, width, (tr, FORMATS[dtype].column_tiles_per_texel), dtype))
    defines = {"N_HEAD": n_head, "BATCH": batch, "D4": width // n_head // 4, "SCALE": scale, "GROUP": group}
    rec.emit("attend", {"x": pattern, "v": v}, {"y": y}, defines, cost=Cost(2 * rows * v.rows * width))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dz = d[0]
        if dz.layout.layers > 1:
            dz = copy(rec, dz, one_layer(y.rows, y.cols, dz.layout.dtype), dz.name)
        dp = scores(rec, dz, v, rows, tr, n_head, scale, f"d.{pattern.name}", batch, 0.0)
        dv = _attend_vjp(rec, pattern, dz, n_head, f"d.{v.name}", batch, scale, group)
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
    """z of one row straight from its scores `[n_head, context]`, by ranges of at least `least` keys.

    One row has too few columns to fill a GPU: ranges are computed in parallel, and the product that reads z weighs
    them. On software GL one range of all keys is faster. `group` heads share one head of v. With `rows`, z of each,
    `[size, n_head * d]`, from scores `[size * n_head, context]`, already weighed.
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
        return AttendedRow(y, logs, keys)
    weighed = rec.scratch(f"{name}.weighed", Layout(rows.size, layout.cols))
    inputs = {"x": y, "logs": logs, "places": rows.places}
    rec.emit("weigh_ranges", inputs, {"y": weighed}, {"KEYS": keys, "RANGES": ranges})
    return weighed


def scores_rows(rec: Recorder, q: Tensor, k: Tensor, n_head: int, scale: float, name: str, rows: Rows) -> Tensor:
    """scores[row * n_head + head, s] = scale * q[row] . key s of that row, `MASKED` beyond its position.

    q of the rows is in rows row.. of the state q; `[size * n_head, context]`.
    """
    y = rec.scratch(name, Layout(rows.size * n_head, rows.table.cols))
    defines = {"N_HEAD": n_head, "D4": q.cols // n_head // 4, "SCALE": scale, "MASKED": MASKED}
    inputs = {"q": q, "k": k, "places": rows.places, "table": rows.table}
    cost = Cost(2 * rows.size * rows.table.cols * q.cols)
    rec.emit("scores_rows", inputs, {"y": y}, defines | {"K_GROUP": q.cols // k.cols}, cost=cost)
    return y


def adopt(rec: Recorder, k: Tensor, v: Tensor, shared_k: Tensor, shared_v: Tensor, size: int) -> None:
    """Copies `size` rows pos.. of a text's keys and values to rows row.. of states that several share, or back."""
    inputs, outputs = {"k": k, "v": v}, {"shared_k": shared_k, "shared_v": shared_v}
    rec.emit("adopt", inputs, outputs, label=shared_k.name, window=Window((k.layout.width, size), "row"))
