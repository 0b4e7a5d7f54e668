"""Tests `--dtype stored`: textures hold the numbers of a GGUF file, and the model computes with these numbers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_files import VOCAB, WIDE_LLAMA, llama, wide_llama
from helpers.soak import mostly_soak

from glgpt.checkpoint import stored_weights
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import THREADS, packed, source_bytes, texture_matrix, weight_formats
from glgpt.errors import GlgptError
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import generation_program, weight_layouts
from glgpt.program.kernel import KERNELS
from glgpt.program.spec import Limits
from glgpt.program.tolerance import Tolerance
from glgpt.program.weight_formats import StoredFormats

FORMATS = {
    "F32": "f32", "F16": "f16", "BF16": "f32", "Q8_0": "q8", "Q5_0": "q8", "Q4_0": "q4", "Q4_1": "q4", "Q5_1": "q5_1",
    "Q4_K": "q4_k", "Q5_K": "q5_k", "Q6_K": "q6_k", "Q2_K": "q2_k", "Q3_K": "q6_k", "IQ4_NL": "q8", "IQ4_XS": "q6_k",
}  # fmt: skip
DOWN = "layers.0.mlp.down_proj.weight"


def opened(path: Path, dtype: str | None = None, **options: Any) -> LanguageModel:
    return load(path, dtype, device="software", **options)


def check(path: Path, formats: Mapping[str, str], **options: Any) -> None:
    """Checks that textures have these formats and the file's numbers, and that logits are close to the f32 model's."""
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    with opened(path, **options) as model, opened(path, "f32") as plain, Checkpoint.open(path) as checkpoint:
        assert model.dtype == "stored" and plain.dtype == "f32"
        for name in model.config.parameters:
            if name in formats:
                assert model.player.program.views[name].dtype == formats[name], name
            assert np.array_equal(model.parameter(name), checkpoint.read(name)), name
        wanted = plain.logits(ids)
        near = Tolerance.of("stored", model.config.n_layer).measure(model.logits(ids), wanted)
        assert near.excess <= 1, near
        assert list(model.generate_ids(ids, 6, temperature=0)) == list(plain.generate_ids(ids, 6, temperature=0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_soak(FORMATS, ("BF16", "Q8_0", "Q4_1", "Q6_K", "IQ4_XS", "Q2_K")))
def test_textures_hold_the_numbers_of_every_type(tmp_path: Path, kind: str) -> None:
    """Fails if a weight is rounded, permuted or read with the wrong scale."""
    path = wide_llama(tmp_path / "model.gguf", {}, kind)
    with Checkpoint.open(path) as checkpoint:
        formats = {p.name: FORMATS[kind] for p in checkpoint.config.parameters.values() if p.product}
    check(path, formats)


@pytest.mark.slow
def test_each_tensor_has_a_format_of_its_own(tmp_path: Path) -> None:
    """Fails if a tensor gets another tensor's format in a file with several tensor types, which llama.cpp writes."""
    kinds = {"token_embd": "Q6_K", "blk.0.attn_v": "Q8_0", "blk.0.ffn_down": "F16", "blk.0.attn_q": "Q5_1"}
    path = wide_llama(tmp_path / "model.gguf", kinds, "Q4_K")
    check(path, {DOWN: "f16"}, kernel="4x8")
    check(path, {"embed_tokens.weight": "q6_k", "layers.0.self_attn.v_proj.weight": "q8", DOWN: "f16"})
    with opened(path) as model:
        assert str(model.formats) == model.info()["dtype"] == "stored (Q4_K, F16, Q6_K, Q5_1, Q8_0)"
        assert model.info()["bytes_by_role"]["weight"] < 1.2 * model.config.parameter_count


def test_a_weight_that_needs_f32_keeps_all_products_in_f32(tmp_path: Path) -> None:
    """Fails if a product rounds its weight or its inputs to f16."""
    path = wide_llama(tmp_path / "model.gguf", {"blk.0.ffn_down": "BF16"}, "Q8_0")
    check(path, {DOWN: "f32", "embed_tokens.weight": "f32"})
    ids = list(range(30))
    with opened(path) as model, opened(path, "f32") as plain:
        np.testing.assert_allclose(model.logits(ids), plain.logits(ids), rtol=1e-5, atol=2e-4)


def test_heads_that_are_padded_have_the_same_numbers(tmp_path: Path) -> None:
    """Fails if padding of the heads splits a block of the output projection's weights."""
    heads = {"head_count": 128, "head_count_kv": 64}
    metadata = WIDE_LLAMA | {f"llama.attention.{k}": n for k, n in heads.items()} | {"llama.rope.dimension_count": 2}
    path = wide_llama(tmp_path / "model.gguf", {}, "Q4_1", metadata)
    attention = "layers.0.self_attn."
    check(
        path,
        {f"{attention}q_proj.weight": "f32", f"{attention}v_proj.weight": "f32", f"{attention}o_proj.weight": "f32"},
    )


def test_scales_of_q4_0_without_a_minimum_in_float16_take_eight_bits(tmp_path: Path) -> None:
    """Fails if the minimum of a block, -8 times its scale, overflows to infinity."""
    path = wide_llama(tmp_path / "model.gguf", {}, "Q4_0")
    with Checkpoint.open(path) as checkpoint:
        at = checkpoint._tensors[DOWN].offset
    data = bytearray(path.read_bytes())
    data[at : at + 2] = np.float16(9000).tobytes()
    path.write_bytes(data)
    with opened(path) as model, Checkpoint.open(path) as checkpoint:
        assert model.player.program.views[DOWN].dtype == "q8"
        assert np.array_equal(model.parameter(DOWN), checkpoint.read(DOWN))


def test_a_scale_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    path = wide_llama(tmp_path / "model.gguf", {}, "Q8_0")
    with Checkpoint.open(path) as checkpoint:
        at = checkpoint._tensors[DOWN].offset
    data = bytearray(path.read_bytes())
    data[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    with pytest.raises(GlgptError, match=rf"(?s){DOWN}.*finite"):
        opened(path)


def test_a_file_of_the_same_blocks_is_not_rounded_in_a_named_format(tmp_path: Path) -> None:
    """Fails if q8 rounds the levels of Q8_0 again."""
    path = llama(tmp_path / "model.gguf", "Q8_0")
    with opened(path, "q8") as model, Checkpoint.open(path) as checkpoint:
        assert all(np.array_equal(model.parameter(name), checkpoint.read(name)) for name in model.parameters())


def test_folders_are_f32_unless_asked(goldens: Path) -> None:
    """Fails if `stored` gives a folder of f32 weights another format, or an unknown dtype is accepted."""
    with Checkpoint.open(goldens / "llama-grouped") as checkpoint:
        assert weight_formats(checkpoint, None) == "f32"
        found = weight_formats(checkpoint, "stored")
        assert isinstance(found, StoredFormats) and set(found.by_name.values()) == {"f32"}
        assert (found.activations, str(found)) == ("f32", "stored (F32)")
        with pytest.raises(GlgptError, match="dtype 'q6_k' is not one of f32, f16, q8, q4, stored"):
            weight_formats(checkpoint, "q6_k")


def test_memory_is_that_of_the_stored_formats(tmp_path: Path) -> None:
    """Fails if the limit of texture memory counts weights as f32."""
    path = wide_llama(tmp_path / "model.gguf", {}, "Q4_1")
    with opened(path) as model:
        needed = model.player.program.nbytes()
    opened(path, max_texture_memory=needed).close()
    with pytest.raises(GlgptError, match="max-texture-memory"):
        opened(path, max_texture_memory=needed - 1)
    with pytest.raises(GlgptError, match="max-texture-memory"):
        opened(path, "f32", max_texture_memory=needed)


@pytest.mark.parametrize(("kind", "chosen"), [("F16", "f16"), ("F32", "f32"), ("Q4_0", "q4"), ("Q6_K", "q6_k")])
def test_formats_are_chosen_without_reading_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chosen: str
) -> None:
    """Fails if the weights are read to choose their formats: loading would read them a second time."""
    path = wide_llama(tmp_path / "model.gguf", {}, kind)
    with Checkpoint.open(path) as checkpoint:
        for method in ("read", "blocks"):
            monkeypatch.setattr(checkpoint, method, lambda name: pytest.fail(f"{name} was read"))
        formats = weight_formats(checkpoint, "stored")
    assert isinstance(formats, StoredFormats) and formats.by_name[DOWN] == chosen


@pytest.mark.parametrize(("processors", "ahead"), [(4, 1), (4, 200_000), (4, 256 << 20), (3, 0)])
def test_parameters_are_packed_in_order_whatever_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processors: int, ahead: int
) -> None:
    """Fails if threads pack wrong texels, or pack a parameter for which they need more memory than `AHEAD_BYTES`."""
    monkeypatch.setattr(stored_weights, "available_processors", lambda: processors)
    monkeypatch.setattr(stored_weights, "AHEAD_BYTES", ahead)
    with Checkpoint.open(wide_llama(tmp_path / "model.gguf", {}, "Q4_1")) as checkpoint:
        program = generation_program(checkpoint.config, Limits(), KERNELS["4x4"], weight_formats(checkpoint, None))
        layouts = weight_layouts(program, checkpoint.config)
        names = []
        for name, bands in packed(checkpoint, layouts):
            names.append(name)
            needed = layouts[name].nbytes + source_bytes(checkpoint, name, layouts[name])
            assert isinstance(bands, list) == (needed <= ahead)
            expected = layouts[name].bands(texture_matrix(checkpoint, name, layouts[name].dtype))
            for (*place, texels), (*wanted, own) in zip(bands, expected, strict=True):
                assert place == wanted
                np.testing.assert_array_equal(texels, own)
        assert names == list(layouts)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_threads_hold_no_more_than_may_wait(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if AHEAD_BYTES limits only the size of packed texels, and not the memory that threads need to pack them.

    To pack a tensor as q4, a thread first decodes the tensor to 32-bit floats, which take seven times as many bytes.
    """
    begun: list[str] = []
    seen: list[str] = []
    stop = threading.Event()

    def slow(checkpoint: Checkpoint, name: str, dtype: str) -> Any:
        begun.append(name)
        stop.wait(30)
        return texture_matrix(checkpoint, name, dtype)

    def note() -> None:
        seen.extend(begun)
        stop.set()

    monkeypatch.setattr(stored_weights, "texture_matrix", slow)
    monkeypatch.setattr(stored_weights, "available_processors", lambda: 4)
    with Checkpoint.open(wide_llama(tmp_path / "model.gguf", {}, kind)) as checkpoint:
        program = generation_program(checkpoint.config, Limits(), KERNELS["4x4"], "q4")
        every = weight_layouts(program, checkpoint.config)
        layouts = {name: layout for name, layout in every.items() if layout.dtype == "q4"}
        needed = [4 * checkpoint.config.parameters[name].count + layout.nbytes for name, layout in layouts.items()]
        monkeypatch.setattr(stored_weights, "AHEAD_BYTES", sum(needed[:2]))
        threading.Timer(0.5, note).start()
        assert [name for name, _ in packed(checkpoint, layouts)] == list(layouts)
    assert sorted(seen) == sorted([*layouts][:2]) and sum(layouts[name].nbytes for name in [*layouts][:4]) < sum(
        needed[:2]
    )


def test_an_error_ends_what_is_not_packed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if threads continue to pack parameters after one thread's error."""
    begun: list[str] = []
    first: list[str] = []

    def failing(checkpoint: Checkpoint, name: str, dtype: str) -> Any:
        begun.append(name)
        if name in first:
            raise GlgptError("a broken tensor")
        time.sleep(0.2)
        return texture_matrix(checkpoint, name, dtype)

    monkeypatch.setattr(stored_weights, "texture_matrix", failing)
    monkeypatch.setattr(stored_weights, "available_processors", lambda: 4)
    with Checkpoint.open(wide_llama(tmp_path / "model.gguf", {}, "Q4_1")) as checkpoint:
        program = generation_program(checkpoint.config, Limits(), KERNELS["4x4"], weight_formats(checkpoint, None))
        layouts = weight_layouts(program, checkpoint.config)
        first.append(next(iter(layouts)))
        with pytest.raises(GlgptError, match="a broken tensor"):
            list(packed(checkpoint, layouts))
    assert len(begun) <= 1 + 2 * THREADS < len(layouts)


def test_a_weight_that_cannot_be_read_ends_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a thread's error is lost, or a thread stays alive."""
    read = texture_matrix
    done: list[str] = []

    def failing(checkpoint: Checkpoint, name: str, dtype: str) -> Any:
        done.append(name)
        if name == DOWN:
            raise GlgptError("a broken tensor")
        return read(checkpoint, name, dtype)

    monkeypatch.setattr(stored_weights, "texture_matrix", failing)
    monkeypatch.setattr(stored_weights, "available_processors", lambda: 4)
    path = wide_llama(tmp_path / "model.gguf", {}, "Q4_1")
    threads = threading.active_count()
    with pytest.raises(GlgptError, match="a broken tensor"):
        opened(path)
    assert threading.active_count() == threads and DOWN in done
