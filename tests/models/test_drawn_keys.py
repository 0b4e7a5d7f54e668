"""Tests which passes of attention draw only keys up to the positions of their rows, not those of the whole context."""

from __future__ import annotations

from collections.abc import Container

import pytest

from glgpt.inference.programs import record_generation
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.network import Network
from glgpt.program.kernel import Kernel
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits

CONFIG = GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=1, n_head=2)
SOFTWARE, GPU = Kernel(8, 1, contiguous=4), Kernel(4, 2)
SCORES, PATTERN = "h.0.attn.scores", "h.0.attn.pattern"


def drawn(kernel: Kernel, entry: str, names: Container[str] = ()) -> dict[str, int]:
    """Returns `keys` of each attention pass. A pass draws the positions before `pos + keys`, or all if `keys` is 0."""
    rec = Recorder(Limits())
    record_generation(Network(rec, CONFIG, kernel, "f32", names=names), sizes=(16,))
    return {made.label: made.keys for made in rec.program().entries[entry].passes if "attn" in made.label}


@pytest.mark.parametrize(("entry", "limited"), [("prefill_16", {SCORES: 16, PATTERN: 16}), ("decode", {SCORES: 1})])
def test_software_draws_no_key_that_is_never_read(entry: str, limited: dict[str, int]) -> None:
    """Fails if llvmpipe shades keys of the whole context for each chunk, or leaves out a key of a chunk's last row."""
    assert {label: keys for label, keys in drawn(SOFTWARE, entry).items() if keys} == limited
    assert not any(drawn(GPU, entry).values())


def test_a_pattern_that_is_read_is_drawn_whole() -> None:
    """Fails if, in a row of a captured pattern, values of earlier texts remain at positions after the row's."""
    found = drawn(SOFTWARE, "prefill_16", [PATTERN])
    assert (found[PATTERN], found[SCORES]) == (0, 16)
