"""Tests how many programs a device links before the first token, and the size of each shader.

Compilers of other drivers unroll loops and take seconds for large shaders. They cannot run here, so the tests count
operators, loops and samplers of a shader's text instead of measuring its compile time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace

import pytest

from glgpt.inference.programs import generation_program
from glgpt.page.player.mixes import mixes
from glgpt.page.player.shapes import Shape, common_shapes
from glgpt.page.programs import generate_program, page_recordings
from glgpt.program.kernel import Kernel
from glgpt.program.spec import Limits, Program

MAX_OPERATORS = 2000  # in a shader's text; calls count as operators
MAX_FUSED_OPERATORS = 4800  # the same for three products of 4-bit weights in one pass, on devices that blend
MAX_LOOPS = 24
MAX_SAMPLERS = 10
BLENDED, SOFTWARE = Kernel(4, 2, blends=True), Kernel(8, 1, contiguous=4)
# Maximum numbers of linked programs: for a greedy token, and for a token that `sample` draws. The page samples its
# first token in JavaScript.
PROGRAMS = {
    ("smollm2-135m", BLENDED): (13, 19),
    ("smollm2-135m", SOFTWARE): (18, 24),
    ("gpt-2-124m", BLENDED): (19, 25),
    ("gpt-2-124m", SOFTWARE): (22, 28),
}
# The same for the page's recordings that run SmolLM2-135M's file, on devices with four and with eight targets.
PAGE = {
    "4x4": (18, 24),
    "4x4-contiguous": (16, 22),
    "4x8": (18, 24),
    "8x4-contiguous": (18, 24),
    "4x8-blended": (13, 19),
    "4x8-paired": (13, 19),
}
MAX_LINKED = 20  # maximum of the first numbers in `PAGE`
needs_cpp = pytest.mark.skipif(not shutil.which("cpp"), reason="expands macros with the C preprocessor")
MACRO, END = re.compile(r"^#define (\w+)", re.M), "__end_of_shader__"
OPERATOR = re.compile(r"[-+*/%&|^<>=!?]+|\b\w+(?=\()")


def shape(slug: str) -> Shape:
    return next(shape for shape in common_shapes() if shape.slug == slug)


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda key: f"{key[0]}-{key[1].label}")
def recorded(request: pytest.FixtureRequest) -> tuple[Program, tuple[int, int]]:
    """Returns a shape's program in q8, with two blocks since all blocks share shaders, and its entry of `PROGRAMS`."""
    name, kernel = request.param
    config = replace(shape(name).config, n_layer=2, n_positions=1024)
    return generation_program(config, Limits(), kernel, "q8"), PROGRAMS[request.param]


def linked(program: Program, *entries: str) -> int:
    return len({p.shader for name in entries for p in program.entries[name].passes})


def test_the_first_token_links_few_programs(recorded: tuple[Program, tuple[int, int]]) -> None:
    program, (greedy, sampled) = recorded
    assert linked(program, "prepare", "decode") <= greedy
    assert linked(program, "prepare", "decode", "sample") <= sampled


@needs_cpp
def test_shaders_are_small(recorded: tuple[Program, tuple[int, int]]) -> None:
    check_sizes(recorded[0].shaders, MAX_OPERATORS)


@pytest.fixture(scope="module")
def page_programs() -> dict[str, Program]:
    """Returns the programs, by recording, with which the page that opens model files runs SmolLM2-135M's file."""
    smollm2 = shape("smollm2-135m")
    formats = next(mix.formats for mix in mixes(smollm2) if mix.name == "Q4_0")  # these formats also hold Q4_1
    config = smollm2.config.with_context(1024, True)
    return {r.name: generate_program(config, r, formats) for r in page_recordings(formats)}


def test_the_first_token_of_a_page_links_few_programs(page_programs: dict[str, Program]) -> None:
    """Fails if `decode`, which a page compiles first (`compilation.ts`), or `sample` links too many programs."""
    assert page_programs.keys() == PAGE.keys()
    for name, (greedy, sampled) in PAGE.items():
        program = page_programs[name]
        assert linked(program, "prepare", "decode") <= greedy, name
        assert linked(program, "prepare", "decode", "sample") <= sampled, name
        assert greedy <= MAX_LINKED


@needs_cpp
def test_the_shaders_of_a_page_are_small(page_programs: dict[str, Program]) -> None:
    for name, program in page_programs.items():
        entries = [
            entry for entry in program.entries.values() if entry.name.startswith(("decode", "prefill", "sample"))
        ]
        shaders = {p.shader: program.shaders[p.shader] for entry in entries for p in entry.passes}
        check_sizes(shaders, MAX_FUSED_OPERATORS if name.endswith(("blended", "paired")) else MAX_OPERATORS)


def expansions(texts: list[str]) -> list[str]:
    """Returns shaders with expanded macros. One process expands them all, since starting it takes longest."""
    parts = [text + "".join(f"\n#undef {name}" for name in MACRO.findall(text)) for text in texts]
    command = ["cpp", "-P", "-undef", "-w", "-"]
    given = f"\n{END}\n".join(parts)
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout.split(END)


def check_sizes(shaders: Mapping[str, str], operators: int) -> None:
    for name, expanded in zip(shaders, expansions([*shaders.values()]), strict=True):
        assert len(OPERATOR.findall(expanded)) <= operators, name
        assert len(re.findall(r"\b(?:for|while)\b", expanded)) <= MAX_LOOPS, name
        assert len(re.findall(r"^uniform \w+ u_", expanded, re.M)) <= MAX_SAMPLERS, name
