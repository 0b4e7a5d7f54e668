"""Tests recording: scratch is reused only after its last reader, and the same calls give the same program."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Any

import pytest
from helpers.soak import mostly_soak
from hypothesis import given, settings
from hypothesis import strategies as st

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.network import Network
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import KERNELS
from glgpt.program.layout import Layout
from glgpt.program.recorder import Cost, Recorder
from glgpt.program.spec import Limits
from glgpt.program.tensor import Tensor
from glgpt.training.program import Recipe, record_training

CONFIG = GPT2Config(vocab_size=50, n_positions=70, n_embd=16, n_layer=3, n_head=2)


def holds_what_was_written(rec: Recorder) -> None:
    """Fails if a pass reads a texture that no longer contains the tensor that was recorded for it.

    Compares each pass of the program with its draft, which names tensors and not yet textures.
    """
    program = rec.program()
    for name, entry in program.entries.items():
        content: dict[tuple[str, int], Tensor] = {}
        drafts = rec._drafts[name]
        assert len(drafts) == len(entry.passes)
        for draft, played in zip(drafts, entry.passes, strict=True):
            for (sampler, tensor), (unit, texture) in zip(draft.inputs, played.inputs, strict=True):
                assert sampler == unit and program.textures[texture].layers == tensor.layout.layers
                if tensor.role == "scratch":
                    held = [content.get((texture, layer)) for layer in range(tensor.layout.layers)]
                    assert all(t is tensor for t in held), f"{name}: {played.label} reads {tensor.name} too late"
                else:
                    assert texture == tensor.name
            for (tensor, layer), target in zip(draft.outputs, played.outputs, strict=True):
                assert layer == target[1] and (tensor.role == "scratch" or target[0] == tensor.name)
                content[target] = tensor
        for key, view in entry.outputs.items():
            wanted = rec._outputs[name][key]
            assert view.tiles == wanted.layout.tiles and (view.rows, view.cols) == (wanted.rows, wanted.cols)
            if wanted.role == "scratch":
                assert all(content[view.texture, layer] is wanted for layer in range(wanted.layout.layers))


@pytest.mark.slow
@pytest.mark.parametrize("names", [(), list(CONFIG.activations), ("h.1.attn.pattern", "h.0.mlp.pre", "ln_f")], ids=len)
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_live_tensor_of_a_model_is_overwritten(kernel: str, dtype: str, names: Container[str]) -> None:
    """Fails if a pass overwrites a texture that a later pass still reads."""
    rec = Recorder(Limits(max_texture_size=80))
    network = Network(rec, CONFIG, KERNELS[kernel], dtype, names)
    for size in (64, 16):
        with rec.entry(f"prefill_{size}"):
            network.last_logits(network.prefill(size), "row")
        with rec.entry(f"logits_{size}"):
            network.logits(network.prefill(size))
    with rec.entry("prepare"):
        network.prepare()
    with rec.entry("decode"):
        network.decode()
    holds_what_was_written(rec)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [{"accumulate": 2}, {"recompute": True, "dropout": 0.1}], ids=["sum", "recompute"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_live_tensor_of_a_training_is_overwritten(kernel: str, recipe: dict[str, Any]) -> None:
    """Fails if a gradient is overwritten before its last reader, in the backward pass or the optimizer."""
    rec = Recorder()
    record_training(rec, CONFIG, Recipe(3, 12, **recipe), KERNELS[kernel])
    holds_what_was_written(rec)


@settings(max_examples=60)
@given(st.data())
def test_no_live_tensor_of_any_program_is_overwritten(data: st.DataObject) -> None:
    """Fails if the texture of an output, or of a tensor read twice or written by several passes, is reused early."""
    rec = Recorder(Limits(max_draw_buffers=data.draw(st.integers(1, 3))))
    layouts = [Layout(6, 8), Layout(6, 8, (2, 1)), Layout(6, 8, (1, 2), "f16")]
    for name in ("one", "two"):
        with rec.entry(name):
            live = [rec.fixed(f"{name}.x", layouts[0], "input")]
            for i in range(data.draw(st.integers(1, 12))):
                a, b = (data.draw(st.sampled_from(live)) for _ in "ab")
                live.append(ops.add(rec, a, b, data.draw(st.sampled_from(layouts)), f"t{i}"))
                if data.draw(st.booleans()):
                    rec.output(live[-1])
            rec.output(live[-1], "last")
    holds_what_was_written(rec)


def test_a_chain_takes_two_textures_and_entries_share_them() -> None:
    """Fails if scratch is never released, so that memory grows with the number of passes or entries."""
    rec = Recorder()
    for name in ("one", "two", "three"):
        with rec.entry(name):
            x = rec.fixed("x", Layout(6, 8), "input")
            for i in range(20):
                x = ops.act(rec, x, "relu", x.layout, f"t{i}")
            rec.output(x)
    assert [t.name for t in rec.program().textures.values() if t.role == "scratch"] == ["scratch.0", "scratch.1"]


def test_a_fixed_tensor_has_one_layout_and_role() -> None:
    rec = Recorder()
    x = rec.fixed("x", Layout(6, 8), "input")
    assert rec.fixed("x", Layout(6, 8), "input") is x
    for layout, role in ((Layout(6, 9), "input"), (Layout(6, 8), "weight")):
        with pytest.raises(ValueError, match="recorded as"):
            rec.fixed("x", layout, role)


def test_uploads_are_the_inputs_that_are_read() -> None:
    """Fails if the inputs of an entry contain the ids of another chunk, or lack the ids of the entry's chunk."""
    rec = Recorder()
    network = Network(rec, CONFIG, KERNELS["4x4"])
    for size in (64, 16):
        with rec.entry(f"logits_{size}"):
            network.logits(network.prefill(size))
    with rec.entry("decode"):
        network.decode()
    entries = rec.program().entries
    assert [entries[n].inputs for n in ("logits_64", "logits_16", "decode")] == [("ids.64",), ("ids.16",), ()]


def test_a_program_beyond_the_limits_is_refused() -> None:
    rec = Recorder(Limits(max_texture_size=8))
    with rec.entry("e"):
        x = rec.fixed("x", Layout(9, 8), "input")
        rec.output(ops.act(rec, x, "relu", x.layout, "y"))
    with pytest.raises(GlgptError, match="texture x is 2 x 9 x 1, beyond 8"):
        rec.program()


def test_a_shader_that_is_missing_is_named() -> None:
    rec = Recorder()
    with rec.entry("e"), pytest.raises(GlgptError, match=r"lost\.frag cannot be read"):
        rec.emit("lost", {}, {"y": rec.scratch("y", Layout(1, 4))})


def test_constants_reach_the_shader_unchanged() -> None:
    """Fails if an integral or very small float becomes an int or another value in GLSL."""
    rec = Recorder()
    values = {"A": 1.0, "B": 1e-12, "C": -1.0e30, "D": 0.1, "E": 7}
    with rec.entry("e"):
        rec.emit("act", {"x": rec.fixed("x", Layout(1, 4), "input")}, {"y": rec.scratch("y", Layout(1, 4))}, values)
    (text,) = rec.program().shaders.values()
    found = {line.split()[1]: line.split()[2] for line in text.splitlines() if line.startswith("#define")}
    assert {k: float(found[k]) for k in values} == pytest.approx(values, rel=1e-8)
    assert all(("." in found[k] or "e" in found[k]) == isinstance(v, float) for k, v in values.items())
    assert not text.lstrip().startswith("#version")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_product_costs_what_it_computes(kernel: str) -> None:
    """Fails if the costs of a product's passes, by which long draws are split, do not add up to the product's cost."""
    for most in (4, 8):
        rec = Recorder(Limits(max_draw_buffers=most))
        x = rec.fixed("x", Layout(16, 12, (min(most, KERNELS[kernel].tile_rows), 1)), "input")
        w = rec.fixed("w", Layout(12, 40), "weight")
        with rec.entry("e"):
            rec.output(ops.matmul(rec, x, w, None, "y", tile_cols=KERNELS[kernel].tile_cols))
        passes = rec.program().entries["e"].passes
        assert sum(p.flops for p in passes) == 2 * 16 * 12 * 40
        assert sum(p.nbytes for p in passes) == w.layout.nbytes
        assert max(len(p.outputs) for p in passes) <= most


@settings(max_examples=60)
@given(
    tiles=st.tuples(st.integers(1, 11), st.integers(1, 6)),
    dtype=st.sampled_from([name for name, fmt in FORMATS.items() if not fmt.quantised]),
    most=st.integers(1, 9),
    columns=st.none() | st.integers(1, 3),
    names=st.sampled_from(["y", "yz", "yzw"]),
)
def test_a_pass_with_too_many_targets_is_split(
    tiles: tuple[int, int], dtype: str, most: int, columns: int | None, names: str
) -> None:
    """Fails if a tile is omitted or written twice, shader and targets disagree, or a cost is lost or counted twice."""
    shared = FORMATS[dtype].column_tiles_per_texel
    layout = Layout(40, 200, (tiles[0], shared * tiles[1]), dtype)
    rec, (flops, nbytes) = Recorder(Limits(max_draw_buffers=most)), (1_000_003, 77)
    outputs = {name: rec.fixed(name, layout, "state") for name in names}
    with rec.entry("e"):
        x = {"x": rec.fixed("x", Layout(40, 200), "input")}
        if len(names) > most:
            with pytest.raises(ValueError, match="cannot be written"):
                rec.emit("act", x, outputs)
            return
        rec.emit("act", x, outputs, label="split", columns=columns, cost=Cost(flops, nbytes))
    program = rec.program()
    passes = program.entries["e"].passes
    assert {p.label for p in passes} == {"split"} and all(len(p.outputs) <= most for p in passes)
    assert (sum(p.flops for p in passes), sum(p.nbytes for p in passes)) == (flops, nbytes)
    written = [target for p in passes for target in p.outputs]
    assert sorted(written) == [(name, layer) for name in sorted(names) for layer in range(layout.layers)]
    for p in passes:
        (line,) = (t for t in program.shaders[p.shader].splitlines() if t.startswith("#define Y_TILES(F) "))
        found = [tuple(map(int, numbers)) for numbers in re.findall(r"F\((\d+), (\d+), (\d+)\)", line)]
        assert [n for n, _, _ in found] == list(range(len(found)))
        layers = [i * layout.across + j // shared for _, i, j in found[::shared]]
        assert [target for target in p.outputs if target[0] == "y"] == [("y", layer) for layer in layers]
        assert not columns or len({j for _, _, j in found}) <= max(columns, shared)


def test_outputs_that_cannot_be_split_alike_are_refused() -> None:
    rec = Recorder(Limits(max_draw_buffers=4))
    with rec.entry("e"), pytest.raises(ValueError, match="cannot be written in passes of 4 layers"):
        rec.emit("act", {}, {"y": rec.scratch("y", Layout(8, 8, (4, 1))), "z": rec.scratch("z", Layout(8, 8))})


@pytest.mark.slow
@pytest.mark.parametrize("kernel", mostly_soak(KERNELS, ("8x4",)))
@pytest.mark.parametrize("most", [8, 4])
@pytest.mark.parametrize(("size", "tiles"), [(4096, 13), (2048, 25)])
@pytest.mark.parametrize("n_embd", [768, 128])
def test_gpt2s_vocabulary_is_trained_on_small_textures(
    kernel: str, most: int, size: int, tiles: int, n_embd: int
) -> None:
    """Fails if a tensor of 50257 columns or rows needs a larger texture or more layers than a device allows."""
    config = GPT2Config(n_embd=n_embd, n_head=n_embd // 64, n_layer=1)
    rec = Recorder(Limits(size, max_draw_buffers=most))
    record_training(rec, config, Recipe(2, 1024, accumulate=2), KERNELS[kernel])
    holds_what_was_written(rec)
    passes = [p for p in rec.program().entries["backward"].passes if p.label == "wte.weight.transposed"]
    assert sum(len(p.outputs) for p in passes) == tiles and len(passes) == -(-tiles // most)


def test_the_uniform_block_is_in_the_order_of_a_programs_json() -> None:
    from glgpt.program.recorder import SCALARS

    assert list(SCALARS) == sorted(SCALARS)  # the page fills the block in the order of the JSON
