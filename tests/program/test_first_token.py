"""Holds what a device compiles before the first token, and the size of each shader, for drivers that are not here.

Some compilers unroll loops and take seconds for large shaders, so the numbers of a shader's text stand for their time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from glgpt.inference.programs import generation_program
from glgpt.page.player.shapes import common_shapes
from glgpt.program.kernel import Kernel
from glgpt.program.spec import Limits, Program

MAX_OPERATORS = 2000  # of a shader's text, which has operators and calls as instructions
MAX_LOOPS = 24
MAX_SAMPLERS = 10
BLENDED, SOFTWARE = Kernel(4, 2, blends=True), Kernel(8, 1, contiguous=4)
# Programs for a greedy token, and for one that `sample` draws on the desktop; the page draws its first token itself.
PROGRAMS = {
    ("smollm2-135m", BLENDED): (13, 19),
    ("smollm2-135m", SOFTWARE): (18, 24),
    ("gpt-2-124m", BLENDED): (19, 25),
    ("gpt-2-124m", SOFTWARE): (22, 28),
}
OPERATOR = re.compile(r"[-+*/%&|^<>=!?]+|\b\w+(?=\()")


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda key: f"{key[0]}-{key[1].label}")
def recorded(request: pytest.FixtureRequest) -> tuple[Program, tuple[int, int]]:
    """The program of a shape in q8 with two of its blocks, since all blocks have the same shaders, and its budget."""
    name, kernel = request.param
    shape = next(shape for shape in common_shapes() if shape.slug == name)
    config = replace(shape.config, n_layer=2, n_positions=1024)
    return generation_program(config, Limits(), kernel, "q8"), PROGRAMS[request.param]


def linked(program: Program, *entries: str) -> int:
    return len({p.shader for name in entries for p in program.entries[name].passes})


def test_the_first_token_links_few_programs(recorded: tuple[Program, tuple[int, int]]) -> None:
    program, (greedy, sampled) = recorded
    assert linked(program, "prepare", "decode") <= greedy
    assert linked(program, "prepare", "decode", "sample") <= sampled


@pytest.mark.skipif(not shutil.which("cpp"), reason="expands macros with the C preprocessor")
def test_shaders_are_small(recorded: tuple[Program, tuple[int, int]]) -> None:
    for name, text in recorded[0].shaders.items():
        command = ["cpp", "-P", "-undef", "-w", "-"]
        expanded = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        assert len(OPERATOR.findall(expanded)) <= MAX_OPERATORS, name
        assert len(re.findall(r"\b(?:for|while)\b", expanded)) <= MAX_LOOPS, name
        assert len(re.findall(r"^uniform \w+ u_", expanded, re.M)) <= MAX_SAMPLERS, name
