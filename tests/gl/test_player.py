"""Tests playing programs: draws in bands, at one row, shared weights, failures, and generation without allocations."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import moderngl
import numpy as np
import pytest
from numpy.typing import NDArray

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import generation_program
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.kernel import KERNELS
from glgpt.program.layout import Layout, View
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Entry, Limits, Pass, Program, Texture

Array = NDArray[Any]
M, K, N = 37, 30, 130
INVOCATIONS, QUERY_RESULT = 0x82F4, 0x8866  # GL_FRAGMENT_SHADER_INVOCATIONS, GL_QUERY_RESULT
WRITE = "precision highp float;\nlayout(std140) uniform Scalars { int pos; float seed; };\n"
WRITE += "layout(location = 0) out vec4 y;\nvoid main() { y = vec4(gl_FragCoord.y, pos, seed, 1.0); }\n"
ROWS = Program(
    {"c": Texture("c", 2, 6, 1, "float", "state"), "s": Texture("s", 2, 6, 1, "float", "scratch")},
    {"f": WRITE},
    {
        "row": Entry("row", (), (Pass("row", "f", (), (("c", 0),), (2, 1), row="pos"),), {}),
        "first": Entry("first", (), (Pass("first", "f", (), (("c", 0),), (2, 1)),), {}),
        "all": Entry("all", (), (Pass("all", "f", (), (("s", 0),), (2, 6)),), {"s": View(6, 8, texture="s")}),
    },
    {},
    {"pos": "int", "seed": "float"},
)


def products(kernel: str = "4x8") -> tuple[Program, dict[str, Layout]]:
    """Returns a program with two consecutive products: `mid` and `y`."""
    rec, k = Recorder(), KERNELS[kernel]
    x = rec.fixed("x", Layout(M, K, (k.tile_rows, k.tile_cols)), "input")
    w, v = rec.fixed("w", Layout(-(-K // 4) * 4, N), "weight"), rec.fixed("v", Layout(132, 50), "weight")
    with rec.entry("e"):
        mid = rec.output(ops.matmul(rec, x, w, None, "mid", tile_cols=k.tile_cols))
        y = rec.output(ops.matmul(rec, mid, v, None, "y", tile_cols=k.tile_cols))
    return rec.program(), {t.name: t.layout for t in (x, w, v, mid, y)}


def fill(player: Player, layouts: dict[str, Layout], names: str = "xwv") -> None:
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal((layouts[name].rows, layouts[name].cols), np.float32) for name in "xwv"}
    for name in names:
        player.write_matrix(name, layouts[name], values[name])


def results(player: Player) -> list[Array]:
    return [player.read(view.texture).copy() for view in player.entry("e").outputs.values()]


@pytest.mark.parametrize("draw_flops", [30_000, 7_001, 1])
def test_bands_give_the_same_bits(device: Device, draw_flops: int) -> None:
    """Fails if splitting a long draw into bands omits a column, or a scissor stays set for the next pass."""
    program, layouts = products()
    found = []
    for options in ({}, {"draw_flops": draw_flops}):
        with Player(device, program, **options) as player:
            fill(player, layouts)
            player.play("e")
            player.play("e")
            found.append((results(player), len(player.prepare("e"))))
    (whole, commands), (cut, more) = found
    assert more > commands
    assert all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True))


def test_a_scissor_ends_with_its_draw(device: Device) -> None:
    """Fails if a cheap pass after a costly one to the same target draws into the last band only."""
    costly = Pass("costly", "f", (), (("s", 0),), (2, 6), flops=1000)
    entry = Entry("e", (), (costly, Pass("cheap", "g", (), (("s", 0),), (2, 6))), {})
    shaders = {"f": WRITE, "g": WRITE.replace("gl_FragCoord.y", "-gl_FragCoord.y")}
    with Player(device, Program(ROWS.textures, shaders, {"e": entry}, {}, ROWS.scalars), draw_flops=500) as player:
        player.play("e", pos=0)
        assert (player.read("s")[..., 0] < 0).all()


def test_a_play_after_an_interrupted_blended_pass_does_not_blend(device: Device) -> None:
    with Player(device, ROWS) as player:
        player.play("first", seed=3)
        device.ctx.enable_only(moderngl.BLEND)  # an interrupt during a blended pass leaves this state
        player.play("first", seed=3)
        assert player.read("c")[0, 0, :, 2].tolist() == [3, 3]


def test_a_row_is_written_where_the_scalar_says(device: Device) -> None:
    """Fails if scalars do not reach a shader, or if a pass that writes one row also moves the next pass to this row."""
    with Player(device, ROWS) as player:
        player.play("row", pos=4, seed=0.5)
        player.play("row", pos=2)  # the seed is unchanged
        rows = player.read("c")[0, :, 0]
        assert rows.tolist() == [[0] * 4, [0] * 4, [2.5, 2, 0.5, 1], [0] * 4, [4.5, 4, 0.5, 1], [0] * 4]
        player.play("first", pos=7)
        assert player.read("c")[0, 0].tolist() == [[0.5, 7, 0.5, 1]] * 2
        assert player.read("c")[0, 2, 0].tolist() == [2.5, 2, 0.5, 1]
        player.clear("c")
        assert not player.read("c").any()
        player.play("all", pos=3, seed=-1.5)
        player.finish()
        assert player.read("s")[0, :, 1].tolist() == [[y + 0.5, 3, -1.5, 1] for y in range(6)]


@pytest.mark.parametrize("draw_flops", [10**10, 500])
def test_columns_on_the_left_are_left_out(device: Device, draw_flops: int) -> None:
    """Fails if a pass draws columns before `first_column`, or its scissor stays set for the next pass."""
    width = 12
    textures = {"c": Texture("c", width, 6, 1, "float", "state")}
    part = Pass("part", "f", (), (("c", 0),), (width, 6), flops=1000, first_column=8)
    entries = {
        "part": Entry("part", (), (part,), {}),
        "whole": Entry("whole", (), (replace(part, first_column=0),), {}),
    }
    program = Program(textures, {"f": WRITE}, entries, {}, ROWS.scalars)
    with Player(device, program, draw_flops=draw_flops) as player:
        player.play("part", pos=1)
        assert (player.read("c")[0, :, :, 3].sum(axis=0) > 0).tolist() == [x >= 8 for x in range(width)]
        player.play("whole", pos=1)
        assert player.read("c")[..., 3].all()


def test_parts_of_a_target_make_a_whole(device: Device) -> None:
    """Fails if a part of a target is drawn with the scissor or viewport of another part in the same framebuffer."""
    parts = [Pass(str(i), "f", (), (("c", 0),), (end, 6), first_column=i) for i, end in enumerate((1, 2))]
    entries = {"parts": Entry("parts", (), tuple(parts), {}), "first": Entry("first", (), (parts[1],), {})}
    with Player(device, replace(ROWS, shaders={"f": WRITE}, entries=entries)) as player:
        player.play("first", pos=1)
        assert (player.read("c")[0, :, :, 3] > 0).tolist() == [[False, True]] * 6
        player.play("parts", pos=2)
        assert player.read("c")[0, :, :, 1].tolist() == [[2, 2]] * 6


@pytest.mark.parametrize(("pos", "columns"), [(0, 1), (1, 2), (29, 9), (90, 12)])
def test_only_keys_to_the_position_are_drawn(device: Device, pos: int, columns: int) -> None:
    """Fails if a pass draws columns of keys to which no query attends, or omits columns of other keys."""
    textures = {"c": Texture("c", 12, 6, 1, "float", "state")}
    entry = Entry("keys", (), (Pass("keys", "f", (), (("c", 0),), (12, 6), keys=4),), {})
    with Player(device, Program(textures, {"f": WRITE}, {"keys": entry}, {}, ROWS.scalars)) as player:
        player.play("keys", pos=pos)
        assert (player.read("c")[0, :, :, 3].sum(axis=0) > 0).tolist() == [x < columns for x in range(12)]


def test_no_block_of_pixels_is_shaded_twice(device: Device) -> None:
    """Fails if a software driver clips the triangle, so that blocks on its diagonal are drawn twice."""
    if not device.software:
        pytest.skip("a GPU shades blocks of 2 x 2 pixels")
    if device.ctx.version_code < 460 and "GL_ARB_pipeline_statistics_query" not in device.ctx.extensions:
        pytest.skip("this driver does not count the fragments that it shades")
    number, shaded = ctypes.c_uint(), ctypes.c_uint64()
    device.gl("glGenQueries", None, ctypes.c_int, ctypes.POINTER(ctypes.c_uint))(1, ctypes.byref(number))
    textures = {"s": Texture("s", 24, 20, 1, "float", "scratch")}
    entry = Entry("e", (), (Pass("all", "f", (), (("s", 0),), (24, 20)),), {})
    with Player(device, Program(textures, {"f": WRITE}, {"e": entry}, {}, ROWS.scalars)) as player:
        player.prepare("e")
        device.gl("glBeginQuery", None, ctypes.c_uint, ctypes.c_uint)(INVOCATIONS, number.value)
        player.play("e", pos=0)
        device.gl("glEndQuery", None, ctypes.c_uint)(INVOCATIONS)
        read = device.gl("glGetQueryObjectui64v", None, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint64))
        read(number.value, QUERY_RESULT, ctypes.byref(shaded))
    device.gl("glDeleteQueries", None, ctypes.c_int, ctypes.POINTER(ctypes.c_uint))(1, ctypes.byref(number))
    assert shaded.value == 24 * 20


def counting(entries: dict[str, tuple[str, str, bool]]) -> Program:
    """Returns a program whose entries write the value that they read plus one.

    `entries` holds (state read, state written, True to swap their names).
    """
    text = "precision highp float;\nprecision highp sampler2DArray;\nuniform sampler2DArray u_x;\n"
    text += "layout(location = 0) out vec4 y;\n"
    text += "void main() { y = texelFetch(u_x, ivec3(gl_FragCoord.xy, 0), 0) + 1.0; }\n"
    textures = [Texture(name, 2, 1, 1, "float", "state") for name in ("c", "c.next", "seen")]
    made = {
        name: Entry(
            name, (), (Pass(name, "add", (("u_x", old),), ((new, 0),), (2, 1)),), {}, ((old, new),) if ping_pong else ()
        )
        for name, (old, new, ping_pong) in entries.items()
    }
    return Program({t.name: t for t in textures}, {"add": text}, made, {})


def test_states_that_flip_are_found_under_their_names(device: Device) -> None:
    """Fails if an entry reads or writes the wrong state after an odd number of plays of any entry."""
    program = counting({"step": ("c", "c.next", True), "look": ("c", "seen", False), "again": ("c", "c.next", True)})
    with Player(device, program) as player:
        value = 0
        for entry in ("look", "step", "look", "again", "step", "look", "step", "step", "look"):
            player.play(entry)
            value += entry != "look"
            assert player.read("c")[0, 0, 0].tolist() == [value] * 4
            if entry == "look":
                assert player.read("seen")[0, 0, 0].tolist() == [value + 1] * 4
        made = dict(device.live)
        for entry in ("step", "look") * 10:
            player.play(entry)
        assert device.live == made  # commands for both orders of the states exist now
        player.write("c", 0, np.full((1, 2, 4), 40, np.float32))
        player.play("step")
        assert player.read("c")[0, 0, 0].tolist() == [41] * 4
        assert player.read("c.next")[0, 0, 0].tolist() == [40] * 4


def test_states_are_zero_at_first(device: Device) -> None:
    with Player(device, ROWS) as player:
        assert not player.read("c").any()


def test_closing_twice_is_harmless(device: Device) -> None:
    before = dict(device.live), device.texture_bytes
    player = Player(device, ROWS)
    player.play("row", pos=0)
    player.close()
    player.close()
    assert (device.live, device.texture_bytes) == before


def test_two_players_share_weights(device: Device) -> None:
    """Fails if the second player uploads its own weights, or releases the first player's weights when it closes."""
    program, layouts = products()
    with Player(device, program) as first:
        fill(first, layouts)
        first.play("e")
        wanted = results(first)
        taken = device.texture_bytes
        with Player(device, program, shared=first.shared()) as second:
            assert device.texture_bytes - taken == program.nbytes(("input", "state", "scratch"))
            fill(second, layouts, "x")
            second.play("e")
            assert all(np.array_equal(a, b) for a, b in zip(wanted, results(second), strict=True))
        first.play("e")
        assert all(np.array_equal(a, b) for a, b in zip(wanted, results(first), strict=True))


def test_players_of_different_options_agree(device: Device) -> None:
    """Fails if a draw of one player uses the bindings or the uniform block of another player."""
    program, layouts = products("8x4")
    options = [Options("300 es", "texelFetch"), Options("330", "textureLod"), Options(storage="uint")]
    players = [Player(device, program, o) for o in options]
    for player in players:
        fill(player, layouts)
    for player in players:
        player.play("e")
    first, *others = (results(player) for player in players)
    for other in others:
        assert all(np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(first, other, strict=True))
    for player in players:
        player.close()


@pytest.mark.parametrize("made", [0, 1, 3])
def test_a_constructor_that_fails_leaves_nothing(device: Device, made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if GL objects stay alive when memory runs out during construction."""
    program, _ = products()
    texture, left = device.texture, iter(range(made))

    def refuse(*args: Any) -> moderngl.TextureArray:
        if next(left, None) is None:
            raise GlgptError("the driver refused it")
        return texture(*args)

    monkeypatch.setattr(device, "texture", refuse)
    before = dict(device.live), device.texture_bytes
    with pytest.raises(GlgptError, match="the driver refused it"):
        Player(device, program)
    assert (device.live, device.texture_bytes) == before


def test_a_program_beyond_the_device_is_refused(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = products()
    monkeypatch.setattr(device, "limits", Limits(max_draw_buffers=4))
    with pytest.raises(GlgptError, match="exceed the limits"):
        Player(device, program)


def test_a_shader_that_does_not_compile_shows_its_line(device: Device) -> None:
    """Fails if a broken shader leaves a player that cannot be closed."""
    program = Program(ROWS.textures, {"f": WRITE.replace("pos, seed", "pos, speed")}, ROWS.entries, {}, ROWS.scalars)
    with Player(device, program) as player, pytest.raises(GlgptError) as error:
        player.play("all")
    said = str(error.value)
    assert "shader f does not compile" in said and said.endswith("y = vec4(gl_FragCoord.y, pos, speed, 1.0); }")


def test_an_entry_that_is_missing_is_named(device: Device) -> None:
    with Player(device, ROWS) as player:
        for ask in (player.entry, player.play):
            with pytest.raises(GlgptError, match="no entry 'last'; it has row, first, all"):
                ask("last")


@pytest.mark.parametrize(
    "texels", [np.zeros((6, 3, 4), np.float32), np.zeros((7, 2, 4), np.float32), np.zeros((6, 2, 4))]
)
def test_texels_of_another_shape_are_refused(device: Device, texels: Array) -> None:
    with Player(device, ROWS) as player, pytest.raises(ValueError, match="c: "):
        player.write("c", 0, texels)


def watch(monkeypatch: pytest.MonkeyPatch, device: Device) -> list[str]:
    """Returns a list that receives the name of every call that compiles, allocates, or queries an error."""
    called: list[str] = []

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            called.append(name)
            return real(*args, **options)

        return call

    kind = type(device.ctx)
    for name in ("buffer", "texture", "texture_array", "program", "vertex_array", "framebuffer", "detect_framebuffer"):
        monkeypatch.setattr(kind, name, noting(name, getattr(kind, name)))
    monkeypatch.setattr(kind, "error", property(noting("error", kind.error.fget)))
    for name in ("compile", "texture", "framebuffer", "gl"):
        monkeypatch.setattr(device, name, noting(name, getattr(device, name)))
    return called


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 3}], ids=["greedy", "sampled"])
def test_the_token_loop_makes_nothing(
    device: Device, goldens: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if generating a token compiles, allocates or queries an error (which takes 1 ms on some drivers)."""
    with LanguageModel.from_pretrained(
        goldens / "inverse-layer-f16", device=os.environ.get("GLGPT_TEST_DEVICE", "software")
    ) as model:
        tokens = model.generate_ids([1, 2, 3], 30, **settings)
        next(tokens)  # compiles the prompt's shaders; shaders of `decode` compile at loading
        live, size = dict(device.live), device.texture_bytes
        called = watch(monkeypatch, device)
        for _ in range(20):
            next(tokens)
        assert not called
        assert (device.live, device.texture_bytes) == (live, size)


def test_a_players_memory_is_the_programs(device: Device) -> None:
    """Fails if textures take more memory than the program's `nbytes`, which `info` reports."""
    config = GPT2Config(vocab_size=50, n_positions=70, n_embd=16, n_layer=2, n_head=2)
    program = generation_program(config, device.limits, KERNELS["4x8"], "f16")
    before = device.texture_bytes
    with Player(device, program) as player:
        assert device.texture_bytes - before == program.nbytes()
        player.play("prepare")
        player.play("decode", pos=0)
        assert device.texture_bytes - before == program.nbytes()


@pytest.mark.parametrize("wrong", [{"inverse_temperature": 1e300}, {"pos": 2**31}, {"no_scalar": 1}], ids=str)
def test_a_scalar_that_does_not_fit_leaves_the_player_usable(device: Device, wrong: dict[str, float]) -> None:
    """Fails if scalars are stored before they are packed, so that every later play fails as well."""
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    with Player(device, generation_program(config, device.limits, KERNELS["4x8"], "f32")) as player:
        player.play("prepare")
        player.play("decode", pos=1)
        before = dict(player.scalars)
        with pytest.raises((OverflowError, struct.error)):
            player.play("decode", **{"pos": 2} | wrong)
        assert player.scalars == before
        player.play("decode", pos=2)
