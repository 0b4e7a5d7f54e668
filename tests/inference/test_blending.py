"""Compares two ways of decoding: blending adds up the slices of a product, or a later pass adds up partial sums."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glgpt import models
from glgpt.bench.engine import RandomCheckpoint
from glgpt.errors import GlgptError
from glgpt.gl.device import Device
from glgpt.gl.player import Player
from glgpt.inference.programs import load_weights
from glgpt.models.network import Network
from glgpt.models.spec import ModelConfig
from glgpt.program.kernel import Kernel
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Program, check
from glgpt.program.weight_formats import StoredFormats, WeightFormats
from glgpt.tuning.kernel_selection import DeviceSettings, adds_by_blending, choose

PLAIN, BLENDED = Kernel(4, 2), Kernel(4, 2, blends=True)
PAIRED = replace(BLENDED, pairs=True)
KINDS = pytest.mark.parametrize("kernel", [BLENDED, PAIRED], ids=["blended", "paired"])
SIZES: dict[str, Any] = {"vocab_size": 200, "n_layer": 2}
GROUPED = {**SIZES, "n_positions": 150, "kv_heads": 2, "n_inner": 192}
CONFIGS = {
    "gpt2": models.family("gpt2")(**SIZES, n_positions=150, n_embd=64, n_head=4),
    "llama": models.family("llama")(**GROUPED, n_embd=96, n_head=6),
    "qwen2": models.family("qwen2")(**GROUPED, n_embd=64, n_head=4),
    "qwen3": models.family("qwen3")(**GROUPED, n_embd=64, n_head=4, head_dim=32),
}
TOKENS = 40


def decoding(config: ModelConfig, kernel: Kernel, dtype: WeightFormats) -> Program:
    rec = Recorder()
    network = Network(rec, config, kernel, dtype)
    with rec.entry("prepare"):
        network.prepare()
    with rec.entry("decode", fused=True):
        network.decode()
    return rec.program()


def decoded(
    device: Device, config: ModelConfig, kernel: Kernel, dtype: WeightFormats, times: int = 1
) -> list[np.ndarray]:
    """Returns the logits of `TOKENS` positions for each run. A player decodes the same tokens `times` times."""
    options = replace(DeviceSettings(device="software").open()[1].options, fetch="texelFetch")
    found = []
    checkpoint: Any = RandomCheckpoint(config)
    with Player(device, decoding(config, kernel, dtype), options) as player:
        load_weights(player, checkpoint)
        for _ in range(times):
            rows = []
            for position in range(TOKENS):
                token = np.zeros((1, player.program.textures["token"].width, 4), np.float32)
                token[0, 0, 0] = 7 * position % config.vocab_size
                player.write("token", 0, token)
                player.play("decode", pos=position)
                rows.append(player.read("logits"))
            found.append(np.stack(rows))
    return found


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(name, "f32", id=name) for name in CONFIGS]
    + [pytest.param(name, "q4", marks=[pytest.mark.soak] * (name != "llama"), id=f"{name}-q4") for name in CONFIGS],
)
def test_blending_decodes_like_partial_sums(name: str, dtype: str, kernel: Kernel, device: Device) -> None:
    (plain,), (blended,) = (decoded(device, CONFIGS[name], k, dtype) for k in (PLAIN, kernel))
    assert np.abs(blended - plain).max() < 3e-6 * np.abs(plain).max()  # the terms are added in another order


@KINDS
@pytest.mark.parametrize("wide", ["q8", "f16"])
def test_layers_of_different_types_are_blended(wide: str, kernel: Kernel, device: Device) -> None:
    """Fails if blending requires q, k and v to have the same storage type, or gate and up, or o and down."""
    config = CONFIGS["llama"]
    narrow = ("q_proj", "v_proj", "gate_proj", "o_proj")
    names = {p.name: wide if p.product else "f32" for p in config.parameters.values()}
    names |= {name: "q4" for name in names if name.split(".")[-2] in narrow}
    formats = StoredFormats(tuple(names.items()), ("Q4_1", wide), "f16")
    (plain,), (blended,) = (decoded(device, config, k, formats) for k in (PLAIN, kernel))
    assert np.abs(blended - plain).max() < 3e-6 * np.abs(plain).max()
    passes = decoding(config, kernel, formats).entries["decode"].passes
    assert len(passes) == 6 + 2 * (7 + 2) and any(p.slices for p in passes)  # two more per block: mlp.up and mlp.act


@KINDS
def test_blending_gives_the_same_bits_each_time(kernel: Kernel, device: Device) -> None:
    first, *others = decoded(device, CONFIGS["llama"], kernel, "q8", times=4)
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("name", "more"), [("gpt2", 0), ("llama", 0), ("qwen3", 2)])
def test_a_block_takes_seven_passes(name: str, more: int) -> None:
    for dtype, kernel in itertools.product(("f32", "q4"), (BLENDED, PAIRED)):
        passes = decoding(CONFIGS[name], kernel, dtype).entries["decode"].passes
        assert len(passes) == 6 + 2 * (7 + more)  # norms of queries and keys add two passes, for their scales


def test_norms_after_a_product_keep_partial_sums() -> None:
    """Fails if a product is blended into the residual stream although a norm must first be applied to the product."""
    config = models.family("gemma2")(**GROUPED, n_embd=64, n_head=4, head_dim=16)
    assert not any(p.slices for p in decoding(config, BLENDED, "f32").entries["decode"].passes)


def test_a_stream_without_equal_tiles_keeps_partial_sums() -> None:
    config = models.family("gpt2")(**SIZES, n_positions=50, n_embd=24, n_head=2)
    assert not any(p.slices for p in decoding(config, BLENDED, "f32").entries["decode"].passes)


def test_a_program_that_adds_to_nothing_is_refused() -> None:
    program = decoding(CONFIGS["gpt2"], BLENDED, "f32")
    decode = program.entries["decode"]
    passes = tuple(replace(p, clear=False) for p in decode.passes)
    with pytest.raises(GlgptError, match=r"adds to .* before it was written"):
        check(replace(program, entries={"decode": replace(decode, passes=passes)}))
    added = next(p for p in decode.passes if p.slices)
    (name, _), *_ = added.outputs
    integers = program.textures | {name: replace(program.textures[name], format="uint")}
    with pytest.raises(GlgptError, match="whose texels are not 32-bit floats"):
        check(replace(program, textures=integers))


@pytest.mark.parametrize("pairs", [False, True])
def test_a_driver_that_adds_in_another_order_gets_partial_sums(
    pairs: bool, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = DeviceSettings(device="software").open()[1].options
    assert adds_by_blending(device, options, pairs)
    assert not choose(device).kernel.blends  # software GL adds up partial sums faster
    read = Player.read
    monkeypatch.setattr(Player, "read", lambda player, name: np.nextafter(read(player, name), np.float32(9)))
    assert not adds_by_blending(device, options, pairs)
    monkeypatch.setattr(device, "limits", replace(device.limits, max_draw_buffers=4))
    assert not adds_by_blending(device, options, pairs)


def test_a_driver_with_one_derivative_for_a_quad_adds_no_pairs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if pairs of pixels are used on a driver that gives both columns of a quad the same derivative."""
    options = DeviceSettings(device="software").open()[1].options
    compiled = Device.compile
    # Imitates coarse derivatives: both columns of a quad get the vertical difference of the left column.
    coarse = """
vec4 coarse(vec4 v) {
  bool left = (int(gl_FragCoord.x) & 1) == 0;
  vec4 d = dFdy(v), across = dFdx(d);
  return left ? d : d - across;
}
vec4 over_pair("""

    def changed(text: str) -> str:
        return text.replace("dFdy(v", "coarse(v").replace("vec4 over_pair(", coarse, 1)

    monkeypatch.setattr(Device, "compile", lambda device, name, text, how: compiled(device, name, changed(text), how))
    assert adds_by_blending(device, options) and not adds_by_blending(device, options, pairs=True)
