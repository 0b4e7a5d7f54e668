"""Tests that an exported folder is complete, has the right bytes, and is never half-written."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.exports import few_recordings
from helpers.reference import random_weights, save_checkpoint
from helpers.small_page import small_page
from PIL import Image

from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.inference.programs import weight_layouts
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page import export as module
from glgpt.page import programs as page_programs
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.page.output import single_file
from glgpt.page.output.files import Shards
from glgpt.page.output.schemas import validate
from glgpt.page.programs import (
    capture_recording,
    generate_program,
    page_recordings,
    product_probe,
    record_page,
    row_probe,
)
from glgpt.program.spec import Limits, Program, check
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer


@pytest.fixture(autouse=True)
def viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the built page with a small one, so that the tests need no Node, and records each model only once."""
    folder = small_page(tmp_path / "dist")
    monkeypatch.setattr(module, "built_page", lambda: folder)
    monkeypatch.setattr(module, "record_page", recorded_once)
    return folder


@pytest.fixture
def every_recording() -> None:
    """Gives the pages of a test all recordings."""


@pytest.fixture(autouse=True)
def recordings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gives the pages of tests without `every_recording` one recording."""
    with contextlib.nullcontext() if "every_recording" in request.fixturenames else few_recordings("4x4"):
        yield


@functools.cache
def recorded(recordings: int, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns the result of `record_page`, computed once for each number of recordings and arguments."""
    return record_page(*arguments)


def recorded_once(*arguments: Any) -> tuple[Any, Any]:
    programs, recordings = recorded(len(page_programs.page_recordings("f32")), arguments)
    return dict(programs), copy.deepcopy(recordings)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("dhead3-relu", "f32"), ("dhead3-relu", "q4"), ("vocab3-untied", "f16"), ("vocab3-untied", "q8")),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("dhead3-relu", "f16"), ("vocab3-untied", "f32"))),
    ],
)
def test_a_folder_is_complete(goldens: Path, tmp_path: Path, every_recording: None, name: str, dtype: str) -> None:
    out = tmp_path / "out"
    manifest = export(goldens / name, out, ExportOptions(dtype, shard_size=1 << 16))
    assert json.loads((out / "manifest.json").read_text()) == manifest
    listed = manifest["files"] | {shard["file"]: shard for shard in manifest["shards"]}
    for file, about in listed.items():
        data = (out / file).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (about["bytes"], about["sha256"]), file
    assert set(listed) | {"manifest.json", "index.html", "assets/a.js", "assets/a.css"} == set(tree(out))
    assert all(shard["bytes"] <= 1 << 16 for shard in manifest["shards"])
    with Checkpoint.open(goldens / name) as checkpoint:
        program = Program.from_json((out / manifest["recordings"][0]["generate"]).read_text())
        layouts = weight_layouts(program, checkpoint.config)
        found = {
            n: np.zeros((t.layers, t.height, t.width, 16), np.uint8)
            for n, t in program.textures.items()
            if n in layouts
        }
        for shard in manifest["shards"]:
            data, offset = (out / shard["file"]).read_bytes(), 0
            for texture, layer, y, rows in shard["pieces"]:
                width = program.textures[texture].width
                part = np.frombuffer(data, np.uint8, rows * width * 16, offset)
                found[texture][layer, y : y + rows] = part.reshape(rows, width, 16)
                offset += part.size
            assert offset == len(data)
        for n, layout in layouts.items():
            expected = layout.pack(checkpoint.config.parameters[n].arrange(checkpoint.read(n)))
            assert found[n].tobytes() == np.ascontiguousarray(expected).tobytes(), n
    reference = json.loads((out / "reference.json").read_text())
    assert list(reference["activations"]) == list(checkpoint.config.activations)[:-1]


def test_recordings_share_weights_and_fit_their_limits(goldens: Path) -> None:
    with Checkpoint.open(goldens / "wide") as checkpoint:
        config = checkpoint.config
    packed = ["4x4", "4x4-contiguous", "4x8", "4x8-blended", "4x8-paired", "8x4-contiguous"]
    for dtype, names in (
        ("f32", [*packed, "8x4", "8x4-blended", "8x4-paired"]),
        ("f16", packed),
        ("q4", packed),
    ):
        recordings = page_recordings(dtype)
        assert sorted(r.name for r in recordings) == sorted(names)
        weights: dict[str, list[Any]] = {"strided": [], "contiguous": []}
        for recording in recordings:
            generate = generate_program(config, recording, dtype)
            capture = capture_recording(config, recording, dtype)
            for program in (generate, capture, product_probe(recording, dtype), row_probe(recording, dtype)):
                check(program, Limits(max_draw_buffers=recording.draw_buffers))
                document = json.loads(program.to_json())
                validate("program", document, "program")
                for text in program.shaders.values():  # a player fills the uniform block in the document's order
                    fields = re.findall(r"(?:int|float) (\w+);", re.search(r"uniform Scalars {(.*)}", text)[1])
                    assert list(document["scalars"]) == fields
            for program in (generate, capture):
                held = {n: (t, program.views[n]) for n, t in program.textures.items() if t.role == "weight"}
                weights[recording.rows].append(held)
            own = {f"{what}_{i}_1" for what in ("attention", "ahead") for i in range(config.n_layer)}
            assert own | {"lens"} <= set(generate.entries)
        assert recordings[0].rows == "strided"
        for held in weights.values():
            assert all(h == held[0] for h in held)


def test_the_device_of_the_reference_run_is_ones_choice(goldens: Path, tmp_path: Path) -> None:
    """Regression: `export` refused a device, and the command always passes one."""
    model = ["--model", str(goldens / "one-f16")]
    assert main(["export", *model, "--out", str(tmp_path / "out"), "--device", "software"]) == 0
    with pytest.raises(GlgptError, match="kernel 'x'"):
        export(goldens / "one-f16", tmp_path / "other", kernel="x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dist", "out"]


def test_what_takes_long_is_announced(goldens: Path, tmp_path: Path) -> None:
    """Fails if a phase is not announced: an export may take minutes."""
    begun: list[str] = []
    export(goldens / "vocab3-untied", tmp_path / "out", phase=begun.append)
    assert [text.split()[-1] for text in begun] == ["programs", "reference", "text", "programs", "weights"]


@pytest.mark.parametrize(("more", "dtype"), [([], "f16"), (["--dtype", "f32"], "f32"), (["--model", "m"], None)])
def test_the_embedded_model_is_exported_in_f16(
    more: list[str], dtype: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def noted(_: Any, out: Any, options: ExportOptions, **__: Any) -> dict[str, Any]:
        asked["dtype"] = options.dtype
        return {"shards": [], "model": "", "dtype": "", "stored": None}

    monkeypatch.setattr(module, "export", noted)
    monkeypatch.setattr("glgpt.cli.commands.export.check_format", lambda *_: None)
    assert main(["export", *more, "--out", str(tmp_path / "out")]) == 0
    assert asked["dtype"] == dtype


@pytest.mark.parametrize("name", ["one-f16", "vocab3-untied"])
def test_a_published_page_has_a_picture_for_its_links(goldens: Path, tmp_path: Path, viewer: Path, name: str) -> None:
    """Fails if the picture's address is not absolute, or the picture is missing for a model without a tokenizer.

    Exports twice, since replacing the page must replace the picture.
    """
    (viewer / "index.html").write_text("<title>glgpt</title>")
    for _ in range(2):
        export(goldens / name, tmp_path / "out", ExportOptions(site="https://example.org/a&b/index.html"))
    page = (tmp_path / "out/index.html").read_text()
    with Image.open(tmp_path / "out/preview.png") as picture:
        assert picture.size == (1200, 630)
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 100  # cells are drawn, not only the background
    for tag in (
        '<link rel="canonical" href="https://example.org/a&amp;b/" />',
        '<meta property="og:image" content="https://example.org/a&amp;b/preview.png" />',
        '<meta name="twitter:card" content="summary_large_image" />',
        f'<meta property="og:image:alt" content="Every stage of {name}, a language model of ',
    ):
        assert page.count(tag) == 1, tag
    export(goldens / name, tmp_path / "out")
    assert not (tmp_path / "out/preview.png").exists()


@pytest.mark.parametrize(
    "site", ["example.org", "ftp://example.org/", "https://", 'https://a/"x', "https://a/?b", "/page"]
)
def test_a_site_that_is_no_address_is_refused(goldens: Path, tmp_path: Path, site: str) -> None:
    with pytest.raises(GlgptError, match="is not a folder's address"):
        export(goldens / "one-f16", tmp_path / "out", ExportOptions(site=site))


def test_the_page_has_the_name_that_it_is_given(goldens: Path, tmp_path: Path) -> None:
    assert export(goldens / "one-f16", tmp_path / "out", ExportOptions(name="My model"))["model"] == "My model"
    command = ["export", "--model", str(goldens / "one-f16"), "--name", "Ours", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["model"] == "Ours"


def test_a_page_names_its_source(goldens: Path, tmp_path: Path) -> None:
    source = "https://example.org/glgpt?tab=readme"
    assert export(goldens / "one-f16", tmp_path / "out", ExportOptions(source=source))["source"] == source
    for wrong in ("javascript:alert(1)", "http://["):
        with pytest.raises(GlgptError, match=f"--source {re.escape(wrong)} is not a web address"):
            export(goldens / "one-f16", tmp_path / "out", ExportOptions(source=wrong))


def test_an_earlier_export_is_replaced_and_nothing_else(goldens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(goldens / "one-f16", out)
    (out / "probe-2x2.json").write_text("{}")
    export(goldens / "vocab3-untied", out)
    assert not (out / "probe-2x2.json").exists()
    assert json.loads((out / "manifest.json").read_text())["model"] == "vocab3-untied"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dist", "out"]
    link = tmp_path / "link"
    link.symlink_to(out)
    export(goldens / "one-f16", link)
    assert link.is_symlink() and json.loads((out / "manifest.json").read_text())["model"] == "one-f16"
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("dear")
    with pytest.raises(GlgptError, match="not an earlier export"):
        export(goldens / "one-f16", other)
    assert tree(other) == {"thesis.txt": b"dear"}


def test_a_failed_export_changes_nothing(goldens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    export(goldens / "one-f16", out)
    before = tree(out)

    for stop, there in ((RuntimeError, out), (KeyboardInterrupt, tmp_path / "new" / "deep" / "page")):
        monkeypatch.setattr(module, "write_weights", Mock(side_effect=stop))
        with pytest.raises(stop):
            export(goldens / "one-f16", there)
    assert tree(out) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dist", "out"]


def test_a_single_file_holds_everything(goldens: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    manifest = export(goldens / "one-f16", out, ExportOptions(single_file=True))
    text = out.read_text()
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert "'<\\/script>'" in text and "margin: 0" in text
    found = {
        name: gzip.decompress(base64.b64decode(data))
        for name, data in re.findall(r'data-file="([^"]+)">([^<]+)<', text)
    }
    assert json.loads(found["manifest.json"]) == manifest
    for shard in manifest["shards"]:
        assert hashlib.sha256(found[shard["file"]]).hexdigest() == shard["sha256"]


def test_weights_too_large_for_a_single_file_are_refused_before_recording(
    goldens: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Regression: the export failed only after recording, and the error suggested formats that are also too large."""
    manifest = export(goldens / "one-f16", tmp_path / "page", ExportOptions("f32"))
    monkeypatch.setattr(module, "record_page", lambda *_: pytest.fail("records"))
    for most, said in ((manifest["shards"][0]["bytes"] - 1, "export a folder, or use f16"), (1, "folder$")):
        monkeypatch.setattr(single_file, "MAX_WEIGHT_BYTES", most)
        with pytest.raises(GlgptError, match=said):
            export(goldens / "one-f16", tmp_path / "page.html", ExportOptions("f32", single_file=True))


def test_a_single_file_allows_its_own_scripts_and_styles_alone(goldens: Path, tmp_path: Path, viewer: Path) -> None:
    export(goldens / "one-f16", tmp_path / "page.html", ExportOptions(single_file=True))
    text = (tmp_path / "page.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    found = dict(directive.strip().split(" ", 1) for directive in policy[1].split(";"))
    elements = {
        "script-src": re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL),
        "style-src": re.findall(r"<style>(.*?)</style>", text, re.DOTALL),
    }
    for directive, inline in elements.items():
        digests = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in inline)
        assert inline and found[directive].split() == [f"'sha256-{digest}'" for digest in digests]
    assert found["connect-src"] == found["default-src"] == "'none'" and found["worker-src"] == "blob:"
    index = viewer / "index.html"
    index.write_text(index.read_text().replace("Content-Security-Policy", "X-Policy"))
    with pytest.raises(GlgptError, match="Content-Security-Policy"):
        export(goldens / "one-f16", tmp_path / "other.html", ExportOptions(single_file=True))


def test_a_module_comes_without_a_page_and_missing_folders_are_made(goldens: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    manifest = export(goldens / "one-f16", out, ExportOptions(embed=True))
    files = {*manifest["files"], *(shard["file"] for shard in manifest["shards"])}
    assert set(tree(out)) == files | {"manifest.json", "glgpt.js", "glgpt.d.ts", "index.html"}
    export(goldens / "one-f16", out)  # the module counts as an earlier export
    assert (out / "assets").is_dir() and not (out / "glgpt.js").exists()


def test_a_shorter_context_has_smaller_caches(goldens: Path, tmp_path: Path) -> None:
    """Checks that the page's caches, limits and reference run use the shorter context, not the model's."""
    found = {}
    for context in (None, 12):
        manifest = export(goldens / "dhead3-relu", tmp_path / "out", ExportOptions(context=context))
        program = Program.from_json((tmp_path / "out" / manifest["recordings"][0]["generate"]).read_text())
        cache = program.views["h.0.attn.k"]
        found[manifest["config"]["n_positions"]] = cache.rows, manifest["shards"][0]["bytes"]
        with Checkpoint.open(goldens / "dhead3-relu") as checkpoint:
            assert manifest["parameters"] == checkpoint.config.parameter_count
    (whole, (rows, weights)), (short, (fewer, narrower)) = found.items()
    assert (
        (rows, fewer, short) == (whole, 12, 12) and whole > 12 and narrower < weights
    )  # unused positions are not exported
    for context, what in ((0, "context is 0"), (whole + 1, f"beyond the {whole} positions of the model")):
        with pytest.raises(GlgptError, match=what):
            export(goldens / "dhead3-relu", tmp_path / "out", ExportOptions(context=context))


def test_bad_input_is_refused(goldens: Path, tmp_path: Path) -> None:
    with pytest.raises(GlgptError, match=r"\.html"):
        export(goldens / "one-f16", tmp_path / "out", ExportOptions(single_file=True))
    with pytest.raises(GlgptError, match="is a file"):
        export(goldens / "one-f16", tmp_path / "dist" / "index.html" / "b")
    with pytest.raises(GlgptError, match="cannot be combined"):
        export(goldens / "one-f16", tmp_path / "a.html", ExportOptions(single_file=True, embed=True))
    with pytest.raises(GlgptError, match="shard size"):
        export(goldens / "one-f16", tmp_path / "out", ExportOptions(shard_size=10))
    with pytest.raises(GlgptError, match="dtype"):
        export(goldens / "one-f16", tmp_path / "out", ExportOptions("f8"))
    for texts in ({"name": "\udcff"}, {"trained_on": "\udcff"}, {"prompts": ["\udcff"]}):
        with pytest.raises(GlgptError, match="is not UTF-8 text"):
            ExportOptions(**texts)
    for schema in ("program", "manifest", "tokenizer", "reference"):
        with pytest.raises(GlgptError, match=rf"{schema}\.json.*required"):
            validate(schema, {"schema": 1}, f"{schema}.json")
    assert [p.name for p in tmp_path.iterdir()] == ["dist"]


def test_shards_are_cut_between_rows(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 100)
    texels = np.arange(7 * 2 * 4, dtype=np.float32).reshape(7, 2, 4)  # rows of 32 bytes
    shards.add("a", 0, 0, texels)
    shards.flush()
    assert [s["pieces"] for s in shards.listing] == [[["a", 0, 0, 3]], [["a", 0, 3, 3]], [["a", 0, 6, 1]]]
    assert b"".join((tmp_path / s["file"]).read_bytes() for s in shards.listing) == texels.tobytes()


def test_a_context_beyond_a_browser_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a model of 8,192 positions failed only after its reference run, with an error about a texture."""
    config = GPT2Config(vocab_size=9, n_positions=5000, n_embd=8, n_layer=1, n_head=2)
    folder = save_checkpoint(tmp_path / "model", config, random_weights(config))
    monkeypatch.setattr(module, "LanguageModel", Mock(side_effect=AssertionError("the model was loaded")))
    with pytest.raises(GlgptError, match=r"a context of 5000 is beyond the 4096 positions that a texture .* --context"):
        export(folder, tmp_path / "out", ExportOptions(context=5000))
    monkeypatch.undo()
    monkeypatch.setattr(module, "built_page", lambda: tmp_path / "dist")
    assert main(["export", "--model", str(folder), "--out", str(tmp_path / "out"), "--device", "software"]) == 0
    assert "the page's context is 2048 of the model's 5000 tokens (--context, up to 4096)" in capsys.readouterr().err
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["config"]["n_positions"] == 2048 and manifest["parameters"] == config.parameter_count


def test_an_export_deletes_nothing_that_none_wrote(goldens: Path, tmp_path: Path) -> None:
    """Regression: exporting again to the root of a site's checkout deleted its .git."""
    export(goldens / "one-f16", tmp_path / "page")
    (tmp_path / "page/CNAME").write_text("example.org")
    (tmp_path / "page/.git").mkdir()
    with pytest.raises(GlgptError, match=r"holds \.git, which is not part of an export"):
        export(goldens / "one-f16", tmp_path / "page")
    assert (tmp_path / "page/CNAME").read_text() == "example.org"
    (tmp_path / "note.html").write_text("mine")
    with pytest.raises(GlgptError, match="is not an earlier export"):
        export(goldens / "one-f16", tmp_path / "note.html", ExportOptions(single_file=True))
    assert (tmp_path / "note.html").read_text() == "mine"
    for _ in range(2):
        export(goldens / "one-f16", tmp_path / "one.html", ExportOptions(single_file=True))


def test_the_reference_run_has_caches_of_its_length(goldens: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Fails if the reference run's caches are larger than its prompt needs, or the prompt is shortened to fit them."""
    seen: list[int] = []
    plain = module.reference_json

    def noted(model: Any, *more: Any) -> Any:
        seen.append(model.config.n_positions)
        return plain(model, *more)

    monkeypatch.setattr(module, "reference_json", noted)
    monkeypatch.setattr(module, "CONTEXT", 8)
    config = GPT2Config.sized(256, 32, 8, 1, 2)
    model = save_checkpoint(tmp_path / "model", config, random_weights(config))
    make_tokenizer("bytes", Text.of_string("a"), model)
    for prompt, positions in (("a", 8), ("a" * 5, 10), ("a" * 30, 32)):
        manifest = export(model, tmp_path / "out", ExportOptions(prompts=[prompt]))
        assert seen.pop() == positions and manifest["config"]["n_positions"] == 32
