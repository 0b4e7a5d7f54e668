"""Tests that fused passes give the same bits as separate ones, and stay within the limits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glgpt.gl.device import Device
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.network import Network
from glgpt.program import recorder
from glgpt.program.fusion import _GLOBAL, _INTERFACE, SMALL, Movable, Shape, fused_text, merged_samplers, schedule
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.spec import Limits
from glgpt.training.program import Recipe, record_training, training_program
from glgpt.training.trainer import Trainer

CONFIG = GPT2Config(vocab_size=96, n_positions=16, n_embd=32, n_layer=3, n_head=2)


def flat(texels: int) -> Shape:
    return texels, 1, 1, "float"


@st.composite
def graphs(draw: Any) -> list[Movable]:
    """Generates passes that read and write a few tensors.

    Each tensor may be written more than once. In recorded programs, only states are.
    """
    names = [f"t{i}" for i in range(draw(st.integers(3, 8)))]
    found = []
    for _ in range(draw(st.integers(1, 20))):
        writes = set(draw(st.lists(st.sampled_from(names), min_size=1, max_size=2)))
        reads = set(draw(st.lists(st.sampled_from(names), max_size=3))) - writes
        shapes = {name: flat(draw(st.sampled_from([0, SMALL, SMALL + 1]))) for name in names}
        found.append(
            Movable(
                draw(st.sampled_from("ab")),
                {name: shapes[name] for name in sorted(reads)},
                {name: shapes[name] for name in sorted(writes)},
                len(reads),
                len(writes),
                draw(st.integers(0, 5)) == 0,
            )
        )
    return found


def run(passes: Sequence[Movable], groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Returns the final contents of each tensor; a group reads all its inputs before it writes."""
    held: dict[Any, Any] = {}
    for group in groups:
        read = [(passes[i].shader, i, tuple((t, held.get(t)) for t in passes[i].reads)) for i in group]
        for i, value in zip(group, read, strict=True):
            for j in (j for j in group if j != i):
                assert not (passes[i].reads.keys() | passes[i].writes.keys()) & passes[j].writes.keys()
            held |= {t: hash(value) for t in passes[i].writes}
    return held


@given(graphs(), st.integers(1, 8), st.integers(1, 16))
def test_a_schedule_computes_what_the_order_recorded_does(passes: list[Movable], targets: int, units: int) -> None:
    """Fails if a pass moves past another on which it depends, is lost or repeated, or if a group exceeds the limits."""
    groups = schedule(passes, Limits(max_draw_buffers=targets, max_texture_units=units))
    assert sorted(i for group in groups for i in group) == list(range(len(passes)))
    assert run(passes, groups) == run(passes, [[i] for i in range(len(passes))])
    for group in (g for g in groups if len(g) > 1):
        members = [passes[i] for i in group]
        assert len({p.shader for p in members}) == 1 and not any(p.fixed for p in members)
        assert len(group) * members[0].targets <= targets and len(group) * members[0].samplers <= units


def test_what_is_large_is_not_kept_alive_for_a_fusion() -> None:
    """Fails if two passes are fused across a third one although a large tensor has to stay alive for this."""
    for texels, groups in ((SMALL, 2), (SMALL + 1, 3)):
        first = Movable("a", {"x": flat(texels)}, {"y": flat(texels)}, 1, 1)
        between = Movable("b", {}, {"z": flat(1)}, 0, 1)
        last = Movable("a", {"v": flat(1)}, {"w": flat(texels)}, 1, 1)
        assert len(schedule([first, between, last], Limits())) == groups


def test_a_group_samples_no_more_textures_than_a_device_has() -> None:
    passes = [Movable("a", {f"x{i}": flat(1)}, {f"y{i}": flat(1)}, 3, 1) for i in range(2)]
    for units, groups in ((6, [[0, 1]]), (5, [[0], [1]])):
        assert schedule(passes, Limits(max_texture_units=units)) == groups


def test_every_member_counts_for_what_waits() -> None:
    """Fails if a group is checked for large tensors only in its first member, though the second member reads one."""
    large = 4 * SMALL
    passes = [
        Movable("a", {"w": flat(0)}, {"o": flat(1)}, 1, 1),
        Movable("b", {"q": flat(1)}, {"x": flat(large)}, 1, 1),
        Movable("a", {"x": flat(large)}, {"p": flat(1)}, 1, 1),
        Movable("d", {"q": flat(1)}, {"s": flat(1)}, 1, 1),
        Movable("a", {"s": flat(1)}, {"r": flat(large)}, 1, 1),
    ]
    assert schedule(passes, Limits()) == [[1], [0, 2], [3], [4]]


@pytest.mark.parametrize(
    ("n_layer", "options"),
    [
        (4, {}),
        (4, {"precision": "f16", "recompute": True}),
        pytest.param(12, {"recompute": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_fused_steps_take_little_more_memory(
    n_layer: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the memory saved by recomputation is lost to tensors that are kept alive for fusion."""
    config = GPT2Config(vocab_size=256, n_positions=128, n_embd=256, n_layer=n_layer, n_head=4)

    def scratch() -> int:
        program = training_program(config, Recipe(4, 128, **options), Limits(), KERNELS["4x8"])
        return program.nbytes(["scratch"])

    together = scratch()
    monkeypatch.setattr(recorder, "schedule", lambda passes, limits: [[i] for i in range(len(passes))])
    alone = scratch()
    assert together - alone <= max(0.3 * alone, 12 << 20)  # bytes; tensors of the same shape share textures


def test_every_name_of_a_training_shader_is_known() -> None:
    """Fails if a fused shader, which holds renamed copies of a shader, misses a name that must be renamed."""
    rec = recorder.Recorder()
    for options in ({}, {"precision": "f16", "recompute": True, "dropout": 0.1}):
        record_training(rec := recorder.Recorder(), CONFIG, Recipe(2, 12, accumulate=2, **options), KERNELS["4x8"])
        for shader, (_, own) in rec._texts.items():
            for line in own.splitlines():
                declares = line[:1].isalpha() and not line.startswith(("void main", "else", "precision"))
                assert not declares or _GLOBAL.match(line) or _INTERFACE.match(line), f"{shader}: {line}"


def test_samplers_of_the_same_texture_are_one_sampler() -> None:
    text = "uniform FLOAT_SAMPLER u_x;\nuniform usampler2DArray u_w;\nuniform FLOAT_SAMPLER u_x_1;\nvec4 x = f(u_x_1);"
    merged = "uniform FLOAT_SAMPLER u_x;\nuniform usampler2DArray u_w;\n#define u_x_1 u_x\nvec4 x = f(u_x_1);"
    assert merged_samplers(text, (("u_x", "u_x"), ("u_w", "u_w"), ("u_x_1", "u_x"))) == merged


def test_a_pass_reads_each_texture_through_one_sampler() -> None:
    rec = recorder.Recorder()
    network = Network(rec, CONFIG, replace(Kernel(4, 2), blends=True, pairs=True), "q8")
    with rec.entry("prepare"):
        network.prepare()
    with rec.entry("decode", fused=True):
        network.decode()
    program = rec.program()
    inputs = {p.shader: p.inputs for entry in program.entries.values() for p in entry.passes}
    declared = {name: re.findall(r"^uniform \w+ (u_\w+);", program.shaders[name], re.MULTILINE) for name in inputs}
    assert declared == {name: [sampler for sampler, _ in read] for name, read in inputs.items()}
    assert all(len({*dict(read).values()}) == len(read) for read in inputs.values())


def test_copies_of_a_shader_share_no_name() -> None:
    own = "#define K 2\nuniform sampler2DArray u_x;\nlayout(location = 0) out vec4 out_0;\nconst float A = 1.0;\n"
    own += "float twice(float v) { return float(K) * v * A; }  // twice A\nvoid main() { out_0 = vec4(twice(1.0)); }"
    text = fused_text("precision highp float;", (own, own))
    assert "float twice_1(float v) { return float(K) * v * A_1; }  // twice A\n" in text
    assert text.count("uniform sampler2DArray") == 2 and "u_x_1;" in text and "sampler2DArray u_x;" in text
    assert "layout(location = 1) out vec4 out_0_1;" in text and text.count("#undef K") == 2
    assert text.endswith("void main() { main_0(); main_1(); }")


@pytest.mark.parametrize("more", [{}, {"precision": "f16"}, {"recompute": True, "kernel": "4x4"}], ids=str)
def test_a_fused_step_has_the_bits_of_its_passes(
    more: dict[str, Any], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a shader's copy in a fused pass reads another copy's sampler, or a gradient is read too early."""
    ids = np.random.default_rng(0).integers(0, 96, (4, 12))

    def trained() -> dict[str, Any]:
        options = {"batch": 2, "context": 12, "accumulate": 2, "dropout": 0.1} | more
        with Trainer(CONFIG, device="software", **options) as trainer:
            for _ in range(2):
                trainer.step(ids, ids)
            return trainer.parameters()

    together = trained()
    monkeypatch.setattr(recorder, "schedule", lambda passes, limits: [[i] for i in range(len(passes))])
    for name, value in trained().items():
        assert np.array_equal(together[name], value), name


@pytest.mark.parametrize(("most", "least"), [(8, 0.22), (4, 0.1)])
def test_a_step_has_fewer_passes(most: int, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes() -> int:
        program = training_program(CONFIG, Recipe(2, 12), Limits(max_draw_buffers=most), KERNELS["4x8"])
        return sum(len(program.entries[name].passes) for name in ("backward", "update"))

    together = passes()
    monkeypatch.setattr(recorder, "schedule", lambda passes, limits: [[i] for i in range(len(passes))])
    assert together <= (1 - least) * passes()
