"""Tests the export of the page that opens model files (`--player`): shapes, mixes of tensor types, and written files.

A shape is the configuration of a model. A mix gives the storage type of each tensor.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.gguf_files import llama, wide_llama
from helpers.small_page import small_page

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import FORMAT_OF, weight_formats
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.models.families.llama import LlamaConfig
from glgpt.page.player import export as player_export
from glgpt.page.player import mixes
from glgpt.page.player.expected import config_about, gguf_about, parameters
from glgpt.page.player.export import PlayerOptions, export_player
from glgpt.page.player.shapes import Shape, common_shapes, listed, read_shape
from glgpt.page.programs import page_recordings
from glgpt.program.formats import ALL
from glgpt.program.weight_formats import StoredFormats

TINY = LlamaConfig(60, 32, 32, 2, 2, n_inner=64, tie_word_embeddings=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "tiny" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(TINY.to_dict()))
    return file


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Returns a function that exports a small substitute for the built page, with two mixes of tensor types."""
    viewer = small_page(tmp_path / "viewer")
    monkeypatch.setattr("glgpt.page.player.export.built_page", lambda: viewer)
    monkeypatch.setattr(mixes, "RECIPES", [r for r in mixes.RECIPES if r.name in ("F32", "Q8_0")])
    return lambda out, *shapes, **more: export_player(out, PlayerOptions(shapes, common=False, **more))


@pytest.mark.soak
@pytest.mark.slow
def test_the_export_lists_its_files_with_their_digests(
    tmp_path: Path, config: Path, small: Callable[..., dict[str, Any]]
) -> None:
    out = tmp_path / "page"
    player = small(out, config, context=16, hosts=["https://models.example"])
    assert json.loads((out / "player.json").read_text()) == player
    [shape] = player["shapes"]
    assert (shape["name"], shape["positions"], shape["vocab"]) == ("tiny", [16, 32], 60)
    packed = (out / shape["folder"] / "shape.bin").read_bytes()
    assert hashlib.sha256(packed).hexdigest() == shape["sha256"] and len(packed) == shape["bytes"]
    document = json.loads(gzip.decompress(packed))
    assert [mix["name"] for mix in document["mixes"]] == ["F32", "Q8_0"]
    for name, about in document["files"].items():
        data = (out / shape["folder"] / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == about["sha256"]
    sources = (out / "shapes" / "sources.bin").read_bytes()
    assert hashlib.sha256(sources).hexdigest() == player["sources"]["sha256"]
    for mix in document["mixes"]:
        # As in an ordinary page, recordings are for four and eight draw buffers, and for devices that blend.
        found = [(r["kernel"], r["rows"], r["draw_buffers"], "blends" in r, "pairs" in r) for r in mix["recordings"]]
        ordinary = page_recordings(mix["dtype"])
        assert found == [(r.kernel.name, r.rows, r.draw_buffers, r.kernel.blends, r.kernel.pairs) for r in ordinary]
        for recording in mix["recordings"]:
            packed = json.loads(gzip.decompress((out / shape["folder"] / recording["generate"]).read_bytes()))
            assert {name: packed["views"][name]["dtype"] for name in mix["formats"]} == mix["formats"]
    page = (out / "index.html").read_text()
    assert '<meta name="glgpt-player" content="player.json" />' in page
    assert (out / "selftest.bin").stat().st_size < 200_000  # fetched only by the self-test
    assert (
        "connect-src 'self' https://huggingface.co https://*.huggingface.co https://*.hf.co https://models.example;"
        in page
    )
    small(out, config)  # replaces the earlier export
    (out / "notes.txt").write_text("mine")
    with pytest.raises(GlgptError, match=r"notes\.txt"):
        small(out, config)


def test_common_shapes_are_those_of_published_models() -> None:
    counts = {shape.name: shape.config.parameter_count for shape in common_shapes()}
    assert counts["SmolLM2-135M"] == 134_515_008 and counts["Qwen3-0.6B"] == 596_049_920
    assert counts["Llama 3.2 1B"] == 1_235_814_400 and counts["GPT-2 124M"] == 124_439_808
    assert counts["Gemma 3 270M"] == 268_098_176 and counts["Pythia-160M"] == 162_322_944
    assert counts["Qwen2.5-1.5B"] == 1_543_714_304 and counts["TinyLlama 1.1B"] == 1_100_048_384
    assert counts["Gemma 3 1B"] == 999_885_952 and counts["DistilGPT2 82M"] == 81_912_576
    assert counts["SmolLM2-1.7B"] == 1_711_376_384 and counts["Qwen3-1.7B"] == 1_720_574_976
    assert counts["DeepSeek-R1-Distill-Qwen-1.5B"] == 1_777_088_000 and len(counts) == 18


def test_mixes_are_those_of_llama_quantize() -> None:
    """Fails if a tensor's type in Q4_K_M is wrong, or has no fallback for rows that 256 does not divide."""
    shapes = {shape.name: shape for shape in common_shapes()}
    found = {mix.name: mix.formats for mix in mixes.mixes(shapes["Llama 3.2 1B"])}
    formats = found["Q4_K_M"]
    assert isinstance(formats, StoredFormats)
    kinds = formats.by_name
    down = [kinds[f"layers.{i}.mlp.down_proj.weight"] for i in range(16)]
    assert [i for i, kind in enumerate(down) if kind == "q6_k"] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert kinds["embed_tokens.weight"] == "q6_k" and kinds["layers.3.self_attn.q_proj.weight"] == "q4_k"
    narrow = {mix.name: mix.formats for mix in mixes.mixes(shapes["SmolLM2-135M"])}["Q4_K_M"]
    assert isinstance(narrow, StoredFormats)
    assert narrow.by_name["layers.3.self_attn.q_proj.weight"] == "q8"  # Q5_0: 256 does not divide 576
    assert narrow.by_name["layers.3.mlp.down_proj.weight"] == "q4_k"
    assert [mix.name for mix in mixes.mixes(shapes["TinyStories-33M"])] == ["F32", "F16"]  # GGUF lacks GPT-Neo


def test_every_quantised_file_of_a_common_shape_has_a_program() -> None:
    """Fails if a matrix in the mix `any`, which runs files of rare mixes, cannot hold every quantised type."""
    for shape in common_shapes():
        found = {mix.name: mix.formats for mix in mixes.mixes(shape)}
        if "Q8_0" not in found:  # GGUF has no architecture for the shape
            continue
        formats = found["any"]
        assert isinstance(formats, StoredFormats)
        products = [p.name for p in shape.config.parameters.values() if p.product]
        assert all(set(FORMAT_OF) <= set(mixes.HOLDS[formats.by_name[name]]) for name in products)


def test_every_type_has_a_format_that_holds_it() -> None:
    assert mixes.HOLDS.keys() == ALL.keys()
    assert all(kind in mixes.HOLDS[dtype] for kind, dtype in FORMAT_OF.items())


def test_a_gguf_file_adds_its_own_mix(tmp_path: Path) -> None:
    file = wide_llama(tmp_path / "model.gguf", {"blk.0.ffn_up": "Q5_1"}, "Q4_K")
    shape = read_shape(file)
    first = mixes.mixes(shape)[0]
    with Checkpoint.open(file) as checkpoint:
        assert first == mixes.Mix("file", weight_formats(checkpoint, None))


def test_shapes_of_one_name_have_separate_folders(config: Path) -> None:
    slugs = [shape.slug for shape in listed([config, config], common=False)]
    assert slugs == ["tiny", "tiny-2"]


def test_metadata_that_a_file_may_lack_is_marked() -> None:
    about = gguf_about(TINY)
    assert about and about["architecture"] == "llama"
    optional = {key: may for key, _, may in about["values"]}
    assert optional["rope.freq_base"] and optional["attention.key_length"]  # llama.cpp has defaults for these
    assert not optional["embedding_length"] and not optional["block_count"]
    assert ["expert_count", 0] in about["neutral"] and ["attention.value_length", 16] in about["neutral"]
    fields = {key: may for key, _, may in config_about(TINY)["values"]}
    assert not fields["hidden_size"] and fields["head_dim"]


def test_every_common_shape_can_be_recognised() -> None:
    for shape in common_shapes():
        listed = parameters(shape.config, shape.config)
        assert len({p["checkpoint"]["name"] for p in listed}) == len(listed)
        assert (gguf_about(shape.config) is None) == all(p["gguf"] is None for p in listed)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--shape", "nothing.json"], r"nothing\.json"),
        (["--no-common-shapes"], "leaves no shape"),
        (["--model", "gpt2"], "--model cannot be combined with --player"),
        (["--fetch-from", "nowhere"], "not a server's address"),
    ],
)
def test_what_cannot_be_exported_says_why(
    tmp_path: Path, small: Any, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    import re

    assert main(["export", "--player", "--out", str(tmp_path / "page"), *args]) == 2
    assert re.search(message, capsys.readouterr().err) and not (tmp_path / "page").exists()


def test_shapes_without_player_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--shape", "config.json", "--out", str(tmp_path / "page")]) == 2
    assert "need --player" in capsys.readouterr().err


@pytest.mark.slow
def test_progress_counts_programs(tmp_path: Path, config: Path, small: Any) -> None:
    seen: list[tuple[int, int]] = []
    export_player(tmp_path / "page", PlayerOptions([config], common=False), progress=lambda *at: seen.append(at))
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.slow
def test_several_processes_write_the_same_page(tmp_path: Path, config: Path, small: Any) -> None:
    for processes in (1, 2):
        small(tmp_path / str(processes), config, llama(tmp_path / "model.gguf"), processes=processes)
    one, two = (
        {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
        for root in (tmp_path / "1", tmp_path / "2")
    )
    assert one == two


def test_a_failed_export_leaves_nothing(tmp_path: Path, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(player_export, "record_page", fail)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path / "page", llama(tmp_path / "model.gguf"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.gguf", "viewer"]


def test_a_name_for_people_is_one_line() -> None:
    assert Shape("A / B\n", TINY).slug == "a-b" and Shape("…", TINY).slug == "shape"
