"""Tests dumps: the files, their descriptions in the manifest, and that pictures show what was computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from glgpt.cli import main
from glgpt.cli.parser import build_parser
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.dump import dump, parse_range, texel_image
from glgpt.plots import activations as plots
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout

WIDE = Path(__file__).parents[1] / "goldens/wide"  # 2 layers, 4 heads, no tokenizer
GROUPED = WIDE.with_name("llama-grouped")  # 3 heads of queries, 1 head of keys and values
IDS = [1, 5, 9, 5, 1, 77]
Array = np.ndarray[Any, Any]
F32 = FORMATS["f32"]


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


@pytest.mark.slow
def test_files_are_those_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "old.png").touch()
    (tmp_path / "manifest.json").write_text(json.dumps({"tokens": [], "labels": [], "files": [{"file": "old.png"}]}))
    with LanguageModel.from_pretrained(WIDE) as model:
        what = ["attention", "hidden", "logits", "h.0.mlp.act", "h.1.attn.q"]
        manifest = dump(model, IDS, tmp_path, what, layers="1", heads="0,2-3")
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {entry["file"] for entry in manifest["files"]} | {"manifest.json"}
    assert files >= {
        "attention/contact-sheet.png", *(f"attention/layer-01-head-{h:02}.png" for h in (0, 2, 3)),
        "hidden/norms.png", "hidden/embed.png", "hidden/h.1.resid_post.png", "logits/top-0000-0005.png",
        "h.0.mlp.act.png", *(f"h.1.attn.q-head-{h:02}.png" for h in (0, 2, 3)),
    }  # fmt: skip
    assert not any("layer-00" in file or "head-01" in file for file in files)
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest
    assert manifest["tokens"] == IDS and manifest["labels"] == [str(i) for i in IDS]
    assert all(entry["name"] and entry["shows"] for entry in manifest["files"])
    for file in files - {"manifest.json"}:
        with Image.open(tmp_path / file) as image:
            assert min(image.size) > 50, file


@pytest.mark.slow
def test_raw_textures_are_written_as_they_lie_in_memory(tmp_path: Path) -> None:
    names = ["h.0.mlp.pre", "h.1.attn.pattern"]
    with LanguageModel.from_pretrained(WIDE) as model:
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


@pytest.mark.slow
def test_masked_scores_stay_out_of_the_range(tmp_path: Path) -> None:
    texels = np.array([[[[-1e30, 1, 2, 3]]]], np.float32)
    picture, low, high = texel_image(texels, F32, -1e29)
    assert (picture.tolist(), low, high) == ([[[0, 0, 128, 255]]], 1.0, 3.0)
    with LanguageModel.from_pretrained(WIDE) as model:
        manifest = dump(model, IDS, tmp_path, ["h.0.attn.scores"], raw=True)
    shows = next(e["shows"] for e in manifest["files"] if e["file"] == "raw/h.0.attn.scores.png")
    assert "e+" not in shows


@pytest.mark.parametrize("ids", [[130], [], [1] * 41])
def test_unusable_ids_leave_no_folder(ids: list[int], tmp_path: Path) -> None:
    with LanguageModel.from_pretrained(WIDE) as model, pytest.raises(GlgptError):
        dump(model, ids, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
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


def test_keys_are_drawn_for_the_heads_that_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if keys are drawn for each head of queries although several such heads share a head of keys."""
    monkeypatch.setattr(plots, "heat_map", lambda *_: None)
    progress: list[tuple[int, int]] = []
    with LanguageModel.from_pretrained(GROUPED) as model:
        names = ["h.1.attn.k", "h.0.attn.q"]
        manifest = dump(model, IDS[:5], tmp_path / "a", names, progress=lambda *counts: progress.append(counts))
        with pytest.raises(GlgptError, match=r"heads '1,2' are out of range; h\.1\.attn\.k has heads 0 to 0"):
            dump(model, IDS[:5], tmp_path / "b", names, heads="1,2")
    heads = [(entry["name"], entry["head"]) for entry in manifest["files"]]
    assert heads == [(names[0], 0), *((names[1], head) for head in range(3))]
    assert progress[0] == (1, 4) and not (tmp_path / "b").exists()


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
    with LanguageModel.from_pretrained(WIDE) as model:
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
