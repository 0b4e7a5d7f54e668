"""Writes pictures of a model's activations: attention patterns, the residual stream, predictions, raw textures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.arguments.names import selected
from glgpt.inference.model import LanguageModel
from glgpt.models.activations import EMBED, PATTERN, RESID_POST, Activation, in_block
from glgpt.program.formats import Format
from glgpt.system.files import holds_manifest, read_json, staged_folder, written_whole
from glgpt.system.outputs import output_folder, would_be_deleted

MANIFEST = "manifest.json"
OF_SYSTEMS = (".DS_Store", "Thumbs.db", "desktop.ini")  # files that file managers write into any folder
GROUPS = ("attention", "hidden", "logits")
MASKED = -1e29  # a score at or below this value is masked: the query does not attend to the key
TOP, PAGE = 8, 48  # maximum numbers of tokens per position, and of positions, in a picture of predictions


def parse_range(text: str | None, count: int, what: str) -> list[int]:
    """Returns the sorted numbers that `text` lists, such as `0,3-5`; for None, all numbers below `count`.

    Raises GlgptError if `text` is not such a list, or if a number in it is not below `count`. `what` is the word for
    the numbers in the message, such as "layers".
    """
    if text is None:
        return list(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise GlgptError(f"{what} {text!r} is not a list such as 0,3-5")
        if last >= count:
            raise GlgptError(f"{what} {text!r} are out of range; the model has {what} 0 to {count - 1}")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def heads_in(activation: Activation, chosen: Sequence[int]) -> list[int]:
    """Returns those of the chosen heads that the activation has: keys and values may have fewer heads than queries."""
    return [head for head in chosen if head < activation.heads]


@dataclass
class Dump:
    """The state of one call of `dump`: the model, the folder, and the files written so far."""

    model: LanguageModel
    ids: list[int]
    out: Path
    layers: list[int]
    heads: list[int]
    progress: Callable[[int, int], None] | None
    total: int = 0
    files: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tokenizer = self.model.tokenizer
        self.label: Callable[[int], str] = tokenizer.label if tokenizer else str
        self.labels = [self.label(i) for i in self.ids]
        self.subtitle = f"{self.model.name}, {len(self.ids)} tokens"

    def path(self, file: str, **about: Any) -> Path:
        """Returns the path at which to write `file`; adds the file to the manifest, with the fields `about`."""
        path = self.out / file
        path.parent.mkdir(parents=True, exist_ok=True)
        self.files.append({"file": file, **about})
        if self.progress:
            self.progress(len(self.files), max(self.total, len(self.files)))
        return path

    def attention(self) -> None:
        """Draws the attention pattern of each chosen layer and head, and a contact sheet of all these patterns."""
        from glgpt.plots import activations as plots

        names = [in_block(i, PATTERN) for i in self.layers]
        _, cache = self.model.run_with_cache(self.ids, names)
        patterns = np.stack([cache[name][self.heads] for name in names])
        plot = plots.AttentionPlot(self.labels, self.subtitle)
        for i, layer in enumerate(self.layers):
            for j, head in enumerate(self.heads):
                file = f"attention/layer-{layer:02}-head-{head:02}.png"
                about = {"name": names[i], "head": head, "shows": "rows attend to columns"}
                plot.draw(patterns[i, j], layer, head, self.path(file, **about))
        path = self.path(
            "attention/contact-sheet.png", name=in_block("*", PATTERN), shows="each row is a layer, each column a head"
        )
        plots.contact_sheet(patterns, self.layers, self.heads, self.subtitle, path)

    def hidden(self) -> None:
        """Draws the residual stream after the embedding and after each chosen block: its L2 norms, then its values."""
        from glgpt.plots import activations as plots

        names = [EMBED, *(in_block(i, RESID_POST) for i in self.layers)]
        _, cache = self.model.run_with_cache(self.ids, names)
        lengths = np.stack([np.linalg.norm(cache[name], axis=1) for name in names])
        shows = "L2 norm: each row is a place in the model, each column a token"
        path = self.path("hidden/norms.png", name=f"{EMBED}, {in_block('*', RESID_POST)}", shows=shows)
        plots.norms(lengths, names, self.labels, self.subtitle, path)
        for name in names:
            self.heat_map(name, cache[name], "hidden/")

    def logits(self) -> None:
        """Draws the likeliest next tokens after each position."""
        from glgpt.plots import activations as plots

        logits = self.model.logits(self.ids).astype(np.float64)
        k = min(TOP, logits.shape[1])
        best = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        exp = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = np.take_along_axis(exp / exp.sum(axis=1, keepdims=True), best, axis=1)
        words = [[self.label(int(i)) for i in row] for row in best]
        right = best == np.array([*self.ids[1:], -1])[:, None]
        for first in range(0, len(self.ids), PAGE):
            here = slice(first, first + PAGE)
            last = min(first + PAGE, len(self.ids)) - 1
            shows = f"the {k} likeliest next tokens after positions {first} to {last}"
            path = self.path(f"logits/top-{first:04}-{last:04}.png", name="logits", shows=shows)
            title = f"likeliest next tokens   {self.subtitle}"
            plots.top_predictions(probabilities[here], words[here], right[here], self.labels[here], title, path)

    def named(self, names: Sequence[str]) -> None:
        """Draws a heat map of each of these activations, or of each chosen head if the activation has heads."""
        if not names:
            return
        _, cache = self.model.run_with_cache(self.ids, names)
        for name in names:
            array = cache[name]
            if array.ndim == 2:
                self.heat_map(name, array)
            else:
                for head in heads_in(self.model.config.activations[name], self.heads):
                    self.heat_map(name, array[head], head=head)

    def heat_map(self, name: str, array: np.ndarray, folder: str = "", head: int | None = None) -> None:
        """Draws a heat map of an array with a row for each token: an activation, or one of its heads."""
        from glgpt.plots import activations as plots

        tag, title = ("", name) if head is None else (f"-head-{head:02}", f"{name}, head {head}")
        about = {"name": name, **({} if head is None else {"head": head}), "shape": list(array.shape)}
        square = self.model.config.activations[name].square
        path = self.path(f"{folder}{name}{tag}.png", **about, shows="each row is a token")
        plots.heat_map(array, self.labels, f"{title}   {self.subtitle}", path, square)

    def raw(self, names: Sequence[str]) -> None:
        """Writes the textures of these activations: the texels as `.npy`, and as an RGBA image."""
        from PIL import Image

        for name, textures in self.model.raw(self.ids, names).items():
            for texture in textures:
                view = texture.view
                tag = f"raw/{name}" + (f"@{texture.start}" if len(textures) > 1 else "")
                about = {
                    "name": name, "first_position": texture.start, "rows": view.rows, "cols": view.cols,
                    "tiles": list(view.tiles), "dtype": view.dtype, "texels": list(texture.texels.shape),
                }  # fmt: skip
                path = self.path(f"{tag}.npy", **about, shows="texels [layer, height, width, RGBA]")
                with written_whole(path) as file:
                    np.save(file, texture.texels)
                floor = MASKED if self.model.config.activations[name].kind == "scores" else None
                picture, low, high = texel_image(texture.texels, view.format, floor)
                tiles = "column tiles" if view.format.packed else "layers"
                shows = f"RGBA texels, {tiles} side by side, {low:g} is 0 and {high:g} is 255"
                path = self.path(f"{tag}.png", **about, shows=shows)
                with written_whole(path) as file:
                    Image.fromarray(picture, "RGBA").save(file, format="PNG")


def texel_image(texels: np.ndarray, fmt: Format, floor: float | None = None) -> tuple[np.ndarray, float, float]:
    """Converts texels [layers, height, width, 4] to an RGBA picture.

    A texel may hold values of several column tiles. Each column tile of each layer becomes an image of [height, width],
    and the n images are drawn side by side. Returns the bytes of the picture, [height, n * width, 4], and the values
    that bytes 0 and 255 stand for. Values at or below `floor` (masked scores) become byte 0; byte 0 stands for the
    smallest value above `floor`.
    """
    if fmt.texture == "float" and texels.dtype == np.uint32:  # the device cannot render floats: bits of floats
        texels = np.ascontiguousarray(texels).view(np.float32)
    tiles = fmt.unpack(texels).reshape(*texels.shape[:3], fmt.column_tiles_per_texel, 4)
    texels = tiles.transpose(0, 3, 1, 2, 4).reshape(-1, *texels.shape[1:])
    values = np.concatenate(list(texels), axis=1).astype(np.float64)
    known = values[np.isfinite(values) & (values > (-np.inf if floor is None else floor))]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    values = np.clip(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)
    return np.round((values - low) / ((high - low) or 1.0) * 255).astype(np.uint8), low, high


def dump(
    model: LanguageModel,
    ids: Sequence[int],
    out: str | Path,
    what: Sequence[str] = ("attention",),
    *,
    layers: str | None = None,
    heads: str | None = None,
    raw: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Writes pictures, selected by `what`, and `manifest.json` to the folder `out`; returns the manifest.

    `what` lists groups (`attention`, `hidden`, `logits`) and names of activations, with wildcards (`h.*.mlp.act`). With
    `raw`, the textures of all these activations, also of those in the groups, are written too. The folder `out` appears
    when all files are complete. If `out` holds an earlier dump, the new dump replaces it. Raises GlgptError for invalid
    ids, and for a name, a layer or a head that the model does not have; raises FileError as `checked_out` does. No file
    is written then.
    """
    known = list(model.config.activations)
    what = [n for name in what for n in ([name] if name in GROUPS else selected(name, known, model.name))]
    chosen_layers = parse_range(layers, model.config.n_layer, "layers")
    chosen_heads = parse_range(heads, model.config.n_head, "heads")
    for own in (model.config.activations[name] for name in what if name not in GROUPS):
        if own.per_head and not heads_in(own, chosen_heads):
            raise GlgptError(f"heads {heads!r} are out of range; {own.name} has heads 0 to {own.heads - 1}")
    model.check_ids(ids)
    with staged_folder(checked_out(out), replace=True) as folder:
        manifest = _draw(model, ids, folder, what, chosen_layers, chosen_heads, raw, progress)
        checked_out(out)  # again: another program may have written to `out` since the first check
        return manifest


def checked_out(out: str | Path) -> Path:
    """Returns the path `out` if a dump may use it: an unused name, an empty folder or an earlier dump.

    Raises FileError for any other file or folder, and for an earlier dump to which other files were added.
    """
    path = output_folder(out, ("earlier dump", lambda folder: holds_manifest(folder, {"tokens", "labels", "files"})))
    if other := _not_of_dump(path):
        raise would_be_deleted(out, other, "a dump")
    return path


def _not_of_dump(folder: Path) -> Path | None:
    """Returns the first file in the folder that neither a dump nor a file manager wrote; None: there is none."""
    held = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    if not held:
        return None
    listed = read_json(folder / MANIFEST)["files"]
    entries = listed if isinstance(listed, list) else []
    own = {MANIFEST, *(str(entry.get("file")) for entry in entries if isinstance(entry, dict))}
    return next((path for path in held if path.as_posix() not in own and path.name not in OF_SYSTEMS), None)


def _draw(
    model: LanguageModel,
    ids: Sequence[int],
    out: Path,
    what: Sequence[str],
    chosen_layers: list[int],
    chosen_heads: list[int],
    raw: bool,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    job = Dump(model, list(ids), out, chosen_layers, chosen_heads, progress)
    single = [name for name in dict.fromkeys(what) if name not in GROUPS]
    groups = {
        "attention": [in_block(i, PATTERN) for i in chosen_layers],
        "hidden": [EMBED, *(in_block(i, RESID_POST) for i in chosen_layers)],
    }
    known = model.config.activations
    inspected = list(dict.fromkeys(n for name in what for n in groups.get(name, [name]))) if raw else []
    shown = [len(heads_in(known[name], chosen_heads)) if known[name].per_head else 1 for name in single]
    job.total = sum(shown) + 2 * len(inspected)
    job.total += ("attention" in what) * (len(chosen_layers) * len(chosen_heads) + 1)
    job.total += ("hidden" in what) * (len(chosen_layers) + 2) + ("logits" in what) * -(-len(ids) // PAGE)
    if "attention" in what:
        job.attention()
    if "hidden" in what:
        job.hidden()
    if "logits" in what:
        job.logits()
    job.named(single)
    if raw:
        job.raw(inspected)
    manifest = {
        "model": model.name,
        "dtype": str(model.formats),
        "tokens": job.ids,
        "labels": job.labels,
        "files": job.files,
    }
    with written_whole(out / MANIFEST) as file:
        file.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode())
    return manifest
