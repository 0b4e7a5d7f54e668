"""Pictures: which files are written, what they say of themselves, and that they show what they should."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from glgpt.cli import main
from glgpt.cli.parser import build_parser
from glgpt.errors import GlgptError
from glgpt.inference.model import GPT2
from glgpt.inspection.dump import dump, parse_range, texel_image
from glgpt.plots import activations as plots
from glgpt.plots import figure, fonts, loss
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout

WIDE = Path(__file__).parents[1] / "goldens/wide"  # 2 layers, 4 heads, no tokenizer
IDS = [1, 5, 9, 5, 1, 77]
Array = np.ndarray[Any, Any]
F32 = FORMATS["f32"]


def pixels(path: Path) -> Array:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def colour(value: float, n: int) -> tuple[int, ...]:
    return tuple(int(c) for c in plots.ATTENTION(float(plots.attention_scale(n)(value)), bytes=True)[:3])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(None, [0, 1, 2, 3, 4, 5]), ("0", [0]), ("0,3-5", [0, 3, 4, 5]), ("4, 1-2,2", [1, 2, 4]), ("5-5", [5])],
)
def test_ranges(text: str | None, wanted: list[int]) -> None:
    assert parse_range(text, 6, "layers") == wanted


@pytest.mark.parametrize("text", ["", "6", "3-1", "0,", "-1", "a", "1-", "0-6", "1.5", "٣-a"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(GlgptError, match="layers"):
        parse_range(text, 6, "layers")


def test_files_are_those_of_the_manifest_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "manifest.json").write_text(json.dumps({"tokens": [], "labels": [], "files": []}))  # an earlier dump
    with GPT2.from_pretrained(WIDE) as model:
        what = ["attention", "hidden", "logits", "h.0.mlp.act", "h.1.attn.q"]
        manifest = dump(model, IDS, tmp_path, what, layers="1", heads="0,2-3")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {entry["file"] for entry in manifest["files"]} | {"manifest.json", "notes.txt"}
    assert files >= {
        "attention/contact-sheet.png", *(f"attention/layer-01-head-{h:02}.png" for h in (0, 2, 3)),
        "hidden/norms.png", "hidden/embed.png", "hidden/h.1.resid_post.png", "logits/top-0000-0005.png",
        "h.0.mlp.act.png", *(f"h.1.attn.q-head-{h:02}.png" for h in (0, 2, 3)),
    }  # fmt: skip
    assert not any("layer-00" in file or "head-01" in file for file in files)
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest
    assert manifest["tokens"] == IDS and manifest["labels"] == [str(i) for i in IDS]
    assert all(entry["name"] and entry["shows"] for entry in manifest["files"])
    for file in files - {"notes.txt", "manifest.json"}:
        assert min(pixels(tmp_path / file).shape[:2]) > 50, file
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_an_attention_picture_shows_its_values_without_blur(tmp_path: Path) -> None:
    n = 8
    pattern = np.tril(np.arange(n * n).reshape(n, n) % 3 / 2)  # 0, 0.5 and 1
    plots.AttentionPlot([f"t{i}" for i in range(n)], "test").draw(pattern, 0, 0, tmp_path / "p.png")
    image = pixels(tmp_path / "p.png")
    future = np.argwhere((image == np.array(mpl.colors.to_rgb("#e9e9ec")) * 255 // 1).all(axis=2))
    top, right = future[:, 0].min(), future[:, 1].max()
    side = round((future[:, 0].max() + 1 - top) * n / (n - 1))  # the last row has no future
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
    assert len(set(counts)) <= 2 and min(counts) > 1000  # all columns alike, but for the colour bar's few pixels


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


@pytest.mark.parametrize("fill", [0.0, np.nan, np.inf, 1e38])
def test_odd_values_can_be_drawn(fill: float, tmp_path: Path) -> None:
    plots.heat_map(np.full((3, 5), fill), ["a", "b", "c"], "odd", tmp_path / "h.png")
    plots.norms(np.full((2, 3), fill), ["embed", "ln_f"], ["a", "b", "c"], "odd", tmp_path / "n.png")
    assert (tmp_path / "h.png").exists() and (tmp_path / "n.png").exists()


def test_a_loss_curve_draws_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.arange(1, 3001.0)
    training = np.stack([steps, 3 + steps % 2], axis=1)  # a loss that goes up and down by the step
    drawn: list[Any] = []
    monkeypatch.setattr(loss, "save", lambda figure, _: drawn.extend(figure.axes[0].lines))
    loss.loss_curve(training, np.zeros((0, 2)), "run", tmp_path / "l.png")
    each, mean = (line.get_xydata() for line in drawn)
    assert np.array_equal(each, training)
    assert np.array_equal(mean[:, 0], steps) and np.allclose(mean[:, 1], 3.5, atol=1 / 30)  # of 31 steps or more


def test_raw_textures_are_written_as_they_lie_in_memory(tmp_path: Path) -> None:
    names = ["h.0.mlp.pre", "h.1.attn.pattern"]
    with GPT2.from_pretrained(WIDE) as model:
        manifest = dump(model, IDS, tmp_path, names, raw=True)
        wanted = model.raw(IDS, names)
    for name in names:
        texels = wanted[name][0].texels
        assert np.array_equal(np.load(tmp_path / f"raw/{name}.npy"), texels)
        entry = next(e for e in manifest["files"] if e["file"] == f"raw/{name}.png")
        assert entry["texels"] == list(texels.shape) and entry["cols"] == wanted[name][0].view.cols
        with Image.open(tmp_path / f"raw/{name}.png") as image:
            layers, height, width, _ = texels.shape
            assert (image.mode, image.size) == ("RGBA", (layers * width, height))


def test_texels_are_scaled_to_their_range() -> None:
    texels = np.array([[[[0, 1, 2, 4]]], [[[np.nan, np.inf, -np.inf, 2]]]], np.float32)
    wanted = [[[0, 64, 128, 255], [0, 255, 0, 128]]]
    picture, low, high = texel_image(texels, F32)
    assert (picture.tolist(), low, high) == (wanted, 0.0, 4.0)
    assert texel_image(texels.view(np.uint32), F32)[0].tolist() == wanted
    assert texel_image(np.zeros((1, 1, 1, 4), np.float32), F32)[0].tolist() == [[[0, 0, 0, 0]]]


def test_column_tiles_that_share_texels_are_drawn_apart() -> None:
    layout = Layout(2, 16, (1, 2), "f16")
    matrix = np.arange(32, dtype=np.float32).reshape(2, 16)
    picture, low, high = texel_image(layout.pack(matrix), layout.format)
    assert (low, high) == (0.0, 31.0)
    assert picture.tolist() == np.round(matrix / 31 * 255).reshape(2, 4, 4).tolist()


def test_masked_scores_stay_out_of_the_range(tmp_path: Path) -> None:
    texels = np.array([[[[-1e30, 1, 2, 3]]]], np.float32)
    picture, low, high = texel_image(texels, F32, -1e29)
    assert (picture.tolist(), low, high) == ([[[0, 0, 128, 255]]], 1.0, 3.0)
    with GPT2.from_pretrained(WIDE) as model:
        manifest = dump(model, IDS, tmp_path, ["h.0.attn.scores"], raw=True)
    shows = next(e["shows"] for e in manifest["files"] if e["file"] == "raw/h.0.attn.scores.png")
    assert "e+" not in shows


@pytest.mark.parametrize("ids", [[130], [], [1] * 41])
def test_unusable_ids_leave_no_folder(ids: list[int], tmp_path: Path) -> None:
    with GPT2.from_pretrained(WIDE) as model, pytest.raises(GlgptError):
        dump(model, ids, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_takes_one_value_and_may_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--what", "logits,h.2.mlp.act", "--what", "h.5.attn.q", "--heads", "1", "--heads", "3,4", "To be"]
    assert main(["dump", "--model", "shakespeare", "--out", str(tmp_path / "new"), "--json", *args]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["labels"] == ["To", "·be"]
    assert [entry["file"] for entry in manifest["files"]] == [
        "logits/top-0000-0001.png", "h.2.mlp.act.png", *(f"h.5.attn.q-head-{h:02}.png" for h in (1, 3, 4))
    ]  # fmt: skip
    parse = build_parser().parse_args
    for end, prompt in ((["To be"], "To be"), (["--", "-To be"], "-To be"), (["-"], "-"), ([], None)):
        found = parse(["dump", "--model", "shakespeare", "--out", "new", "--what", "hidden", *end])
        assert (found.model, found.what, found.prompt) == ("shakespeare", ["hidden"], prompt)
    for bad in (["--what", "hidden,", "To be"], ["--raw", "To", "be"], ["--raw", "--rawer"], ["To", "--raw", "be"]):
        with pytest.raises(SystemExit):
            parse(["dump", "--model", "shakespeare", "--out", "new", *bad])


@pytest.mark.parametrize(
    "args",
    [["--what", "h.2.ln_1"], ["--what", "attentions"], ["--layers", "2"], ["--heads", "0-4"], ["--heads", "x"]],
)
def test_what_the_model_lacks_is_refused(args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "--model", str(WIDE), "--ids", "1,2", "--out", str(tmp_path / "new"), *args]) == 2
    assert capsys.readouterr().err.startswith("glgpt: error: ")
    assert not (tmp_path / "new").exists()


def test_the_command_draws_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a/b"
    assert main(["dump", "To be", "--out", str(out), "--layers", "5", "--heads", "1", "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["labels"] == ["To", "·be"]
    assert [entry["file"] for entry in manifest["files"]] == [
        "attention/layer-05-head-01.png", "attention/contact-sheet.png"
    ]  # fmt: skip


def test_what_is_drawn_is_what_the_model_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[tuple[int, int], Array] = {}
    tops: list[tuple[Any, ...]] = []
    sheets: list[Array] = []
    monkeypatch.setattr(plots.AttentionPlot, "draw", lambda _, p, layer, head, path: drawn.update({(layer, head): p}))
    monkeypatch.setattr(plots, "contact_sheet", lambda patterns, *_: sheets.append(patterns))
    monkeypatch.setattr(plots, "top_predictions", lambda *args: tops.append(args))
    with GPT2.from_pretrained(WIDE) as model:
        ids = [*IDS, *model.generate_ids(IDS, 4, temperature=0.0)]
        dump(model, ids, tmp_path, ["attention", "logits"], layers="1", heads="1,3")
        logits, cache = model.run_with_cache(ids, ["h.1.attn.pattern"])
    patterns = cache["h.1.attn.pattern"]
    assert set(drawn) == {(1, 1), (1, 3)}
    assert all(np.array_equal(drawn[1, head], patterns[head]) for head in (1, 3))
    assert np.array_equal(sheets[0], patterns[None, [1, 3]])
    (probabilities, words, right, labels, *_) = tops[0]
    best = [np.argsort(-row)[:8].tolist() for row in logits]
    assert words == [[str(i) for i in row] for row in best]
    wanted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose(probabilities, np.take_along_axis(wanted, np.array(best), 1), atol=1e-6)
    assert right.tolist() == [[i == after for i in row] for row, after in zip(best, [*ids[1:], -1], strict=True)]
    assert right[len(IDS) - 1 : -1, 0].all()
    assert labels == [str(i) for i in ids]


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
