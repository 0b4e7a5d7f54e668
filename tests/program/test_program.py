"""Tests programs as data: what `check` rejects, the JSON round trip, the outputs of a capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glgpt.errors import GlgptError
from glgpt.inference.programs import capture_program, generation_program
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.kernel import KERNELS
from glgpt.program.layout import View
from glgpt.program.spec import Entry, Limits, Pass, Program, Texture, check

SHAKESPEARE = GPT2Config(vocab_size=1024, n_positions=256, n_embd=256, n_layer=6, n_head=8)


def texture(name: str, role: str, **other: Any) -> Texture:
    return Texture(**{"name": name, "width": 3, "height": 2, "layers": 2, "format": "float", "role": role, **other})


def whole() -> Program:
    """Returns a program of three passes, which write scratch, a row of a state, and the output."""
    textures = [texture("w", "weight"), texture("x", "input"), texture("s", "scratch"), texture("y", "scratch")]
    both = (("s", 0), ("s", 1))
    passes = (
        Pass("first", "f", (("u_x", "x"), ("u_w", "w")), both, (3, 2)),
        Pass("row", "f", (("u_s", "s"),), (("c", 0),), (3, 1), row="pos"),
        Pass("last", "f", (("u_s", "s"), ("u_c", "c")), (("y", 0), ("y", 1)), (3, 2)),
    )
    return Program(
        {t.name: t for t in [*textures, texture("c", "state", layers=1)]},
        {"f": "void main() {}"},
        {"e": Entry("e", ("x",), passes, {"y": View(2, 12, (1, 2), texture="y")})},
        {"w": View(2, 12, (1, 2), texture="w")},
        {"pos": "int"},
    )


def with_pass(number: int, **changes: Any) -> Program:
    """Returns `whole` with one pass changed."""
    program = whole()
    entry = program.entries["e"]
    passes = [replace(p, **changes) if i == number else p for i, p in enumerate(entry.passes)]
    return replace(program, entries={"e": replace(entry, passes=tuple(passes))})


def with_part(end: int, first_column: int, **changes: Any) -> Program:
    """Returns `whole` with its last pass drawn in two parts: up to column `end`, and from `first_column` on."""
    program = with_pass(2, viewport=(end, 2))
    entry = program.entries["e"]
    rest = replace(whole().entries["e"].passes[2], label="rest", first_column=first_column)
    passes = (*entry.passes, replace(rest, **changes))
    textures = program.textures | {"z": texture("z", "scratch")}
    return replace(program, textures=textures, entries={"e": replace(entry, passes=passes)})


def with_entry(**changes: Any) -> Program:
    program = whole()
    return replace(program, entries={"e": replace(program.entries["e"], **changes)})


def with_texture(name: str, **changes: Any) -> Program:
    program = whole()
    return replace(program, textures=program.textures | {name: replace(program.textures[name], **changes)})


def ping_pong(pair: tuple[str, str] = ("c", "d"), outputs: tuple[int, ...] = (0, 1), **changes: Any) -> Program:
    """Returns a program whose entry writes layers `outputs` of state d and swaps `pair`; `changes` modify d."""
    states = [texture("c", "state"), replace(texture("d", "state"), **changes)]
    one = Pass("write", "f", (("u_x", "x"),), tuple(("d", layer) for layer in outputs), (3, 2))
    entry = Entry("e", ("x",), (one,), {}, (pair,))
    textures = {t.name: t for t in [texture("x", "input"), *states]}
    return Program(textures, {"f": "void main() {}"}, {"e": entry}, {})


def ping_pong_with(*more: Pass, **changes: Any) -> Program:
    """Returns `ping_pong` with its pass changed and more passes after it."""
    entry = ping_pong().entries["e"]
    passes = (replace(entry.passes[0], **changes), *more)
    return replace(ping_pong(), entries={"e": replace(entry, passes=passes)}, scalars={"pos": "int"})


LOST = View(2, 12, (1, 2), texture="lost")
FAULTS: dict[str, tuple[Program, str]] = {
    "an unknown input": (with_pass(0, inputs=(("u_x", "lost"),)), "entry e, pass 0 (first): unknown texture lost"),
    "an unknown target": (with_pass(2, outputs=(("lost", 0),)), "entry e, pass 2 (last): unknown texture lost"),
    "an unknown shader": (with_pass(1, shader="g"), "entry e, pass 1 (row): unknown shader g"),
    "an unknown scalar": (with_pass(1, row="seed"), "entry e, pass 1 (row): unknown scalar seed"),
    "sampled while attached": (
        with_pass(2, inputs=(("u_y", "y"),)),
        "entry e, pass 2 (last): y is sampled while attached",
    ),
    "another layer sampled while attached": (
        with_pass(2, inputs=(("u_s", "s"),), outputs=(("s", 1), ("y", 0))),
        "entry e, pass 2 (last): s is sampled while attached",
    ),
    "read before written": (
        with_pass(0, inputs=(("u_y", "y"),)),
        "entry e, pass 0 (first): y is read before it was written",
    ),
    "one layer read before written": (
        with_pass(0, outputs=(("s", 0),)),
        "entry e, pass 1 (row): s is read before it was written",
    ),
    "an input that is not uploaded": (
        with_entry(inputs=()),
        "entry e, pass 0 (first): x is read before it was written",
    ),
    "a part of the width": (with_pass(2, viewport=(2, 2)), "entry e, pass 2 (last): y is written only in part"),
    "parts with a gap": (
        with_part(1, 2),
        "entry e, pass 3 (rest): y is written only in part",
    ),
    "a part read before the others": (
        with_part(2, 2, inputs=(("u_y", "y"),), outputs=(("z", 0),)),
        "entry e, pass 3 (rest): y is read before it was written",
    ),
    "a part of the height": (with_pass(0, viewport=(3, 1)), "entry e, pass 0 (first): s is written only in part"),
    "rows of scratch": (with_pass(0, row="pos"), "entry e, pass 0 (first): s is written only in part"),
    "beyond the texture": (with_pass(1, viewport=(3, 3)), "entry e, pass 1 (row): c has no layer 0 of 3 x 3"),
    "beyond the layers": (with_pass(1, outputs=(("c", 1),)), "entry e, pass 1 (row): c has no layer 1 of 3 x 1"),
    "a first column after the last": (
        with_pass(2, first_column=3),
        "entry e, pass 2 (last): first column 3 is not one of its 3 columns",
    ),
    "a negative first column": (with_pass(2, first_column=-1), "entry e, pass 2 (last): first column -1 is not one"),
    "keys of rows": (with_pass(1, keys=1), "entry e, pass 1 (row): 1 keys must be 0 in a pass with a row"),
    "negative keys": (with_pass(0, keys=-1), "entry e, pass 0 (first): -1 keys must be 0"),
    "a first column of rows": (with_pass(1, first_column=1), "entry e, pass 1 (row): first column 1 must be 0"),
    "a first column of slices": (
        with_pass(2, first_column=1, slices=2, clear=True),
        "entry e, pass 2 (last): first column 1 must be 0",
    ),
    "slices of rows": (
        with_pass(1, slices=2, clear=True),
        "entry e, pass 1 (row): 2 slices must be 0 in a pass with a row",
    ),
    "a written weight": (with_pass(2, outputs=(("w", 0),)), "entry e, pass 2 (last): w is a weight"),
    "an uploaded weight": (with_entry(inputs=("w",)), "entry e, w cannot be uploaded"),
    "an upload of nothing": (with_entry(inputs=("lost",)), "entry e, lost cannot be uploaded"),
    "an output that is not a texture": (with_entry(outputs={"y": LOST}), "entry e, output lost is not a texture"),
    "an output never written": (
        with_entry(passes=whole().entries["e"].passes[:2]),
        "entry e, output y is never written",
    ),
    "no outputs": (with_pass(0, outputs=()), "entry e, pass 0 (first): 2 inputs and 0 outputs exceed the limits"),
    "too many outputs": (
        with_pass(2, outputs=(("y", 0), ("y", 1), ("c", 0))),
        "entry e, pass 2 (last): 2 inputs and 3 outputs exceed the limits",
    ),
    "too many inputs": (
        with_pass(2, inputs=(("u_s", "s"), ("u_c", "c"), ("u_w", "w"))),
        "entry e, pass 2 (last): 3 inputs and 2 outputs exceed the limits",
    ),
    "a wide texture": (with_texture("w", width=9), "texture w is 9 x 2 x 2, beyond 8 squared x 4"),
    "a deep texture": (with_texture("w", layers=5), "texture w is 3 x 2 x 5, beyond 8 squared x 4"),
    "an empty texture": (with_texture("w", height=0), "texture w is empty"),
    "a format": (with_texture("w", format="byte"), "texture w has format 'byte'"),
    "a role": (with_texture("w", role="toy"), "role 'toy'"),
    "a pair of which one is lost": (ping_pong(("c", "lost")), "entry e, c and lost are not two states of one shape"),
    "a pair that is not a state": (ping_pong(("x", "d")), "entry e, x and d are not two states of one shape"),
    "a pair of two sizes": (ping_pong(layers=3), "entry e, c and d are not two states of one shape"),
    "a new state not written whole": (ping_pong(outputs=(1,)), "entry e, d replaces c but is not written"),
    "a row of a new state": (ping_pong_with(row="pos", viewport=(3, 1)), "entry e, d replaces c but is not"),
    "a part of a new state": (ping_pong_with(viewport=(2, 2)), "entry e, d replaces c but is not written"),
    "an old state that is written": (
        ping_pong_with(Pass("both", "f", (("u_x", "x"),), (("c", 1),), (3, 2))),
        "entry e, d replaces c but is not written completely",
    ),
    "too many scalars": (replace(whole(), scalars={str(i): "int" for i in range(9)}), "9 scalars do not fit"),
}
SMALL = Limits(max_texture_size=8, max_layers=4, max_draw_buffers=2, max_texture_units=2, max_uniform_block=32)


@pytest.mark.parametrize("fault", FAULTS)
def test_check_names_the_entry_and_the_pass(fault: str) -> None:
    """Fails if a program that reads undefined texels, or that WebGL rejects, is accepted."""
    program, message = FAULTS[fault]
    with pytest.raises(GlgptError) as error:
        check(program, SMALL)
    assert message in str(error.value)


def test_check_lets_a_sound_program_through() -> None:
    check(whole(), SMALL)
    check(ping_pong(), SMALL)


def test_json_gives_back_the_same_program() -> None:
    """Fails if an exported program differs from the recorded one."""
    for program in (whole(), ping_pong(), generation_program(SHAKESPEARE, Limits(), KERNELS["4x8"], "f16")):
        back = Program.from_json(program.to_json())
        assert back == program and back.to_json() == program.to_json() and back.digest() == program.digest()
    assert whole().digest() != with_pass(0, flops=1).digest()


def test_the_digest_is_that_of_every_process() -> None:
    """Fails if recording depends on the order of a set."""
    code = (
        "from glgpt.inference.programs import *; from glgpt.models.families.gpt2 import GPT2Config\n"
        "from glgpt.program.kernel import KERNELS; from glgpt.program.spec import Limits\n"
        "c = GPT2Config(vocab_size=9, n_positions=20, n_embd=8, n_layer=1, n_head=2)\n"
        "for p in (generation_program(c, Limits(), KERNELS['4x4'], 'f32'),\n"
        "          capture_program(c, Limits(), KERNELS['4x4'], 'f32', {'embed', 'logits', 'h.0.attn.q'}, (16, 1))):\n"
        "    print(p.digest())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_another_schema_is_refused() -> None:
    data = json.loads(whole().to_json()) | {"schema": 99}
    with pytest.raises(GlgptError, match="schema 99 is not 2"):
        Program.from_json(json.dumps(data))


@pytest.mark.parametrize("change", ["", "[]", "{}", "5", '{"schema": 2}', '{"schema": 2, "textures": {"a": {"x": 1}}}'])
def test_what_is_no_program_is_refused(change: str) -> None:
    with pytest.raises(GlgptError, match="not a glgpt program"):
        Program.from_json(change)


def test_a_capture_lists_what_is_wanted() -> None:
    """Fails if an activation cannot be read, or if one is retained that was not requested."""
    names = list(SHAKESPEARE.activations)
    for wanted in (set(names), {"logits"}, {"logits", "h.3.mlp.pre", "h.0.attn.pattern"}):
        program = capture_program(SHAKESPEARE, Limits(), KERNELS["4x8"], "f32", wanted, (256, 64, 16, 1))
        for entry in program.entries.values():
            assert set(entry.outputs) == wanted
            assert len({view.texture for view in entry.outputs.values()}) == len(wanted)
