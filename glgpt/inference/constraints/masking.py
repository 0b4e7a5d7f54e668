"""Chooses tokens on the device, among the tokens that a constraint allows.

An entry is a named list of passes; a state is a texture that keeps its contents between entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glgpt import ops
from glgpt.gl.player import Player
from glgpt.inference.constraints.matcher import Matcher
from glgpt.program.layout import Layout, texels
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program

if TYPE_CHECKING:
    from glgpt.inference.sampling import Sampler

GREEDY, SAMPLE, SAMPLE_NUCLEUS = "masked_best", "masked_sample", "masked_sample_nucleus"  # entries of the program
ALLOWED = "allowed"


def masked_program(limits: Limits, logits: Layout, token: Layout = ops.TOKEN) -> Program:
    """Records entries that choose a token from the state `logits`, among the tokens whose bits are set in `allowed`.

    `allowed` is a state too. Among these tokens, `masked_best` chooses the likeliest, and `masked_sample` and
    `masked_sample_nucleus` draw one (`ops.sample`). Each entry writes its token to the state `token`.
    """
    rec = Recorder(limits)
    x = rec.fixed("logits", logits, "state")
    out = rec.fixed("token", token, "state")
    allowed = rec.fixed(ALLOWED, Layout(1, texels(-(-logits.cols // ops.MASK_BITS))), "state")
    for entry in (GREEDY, SAMPLE, SAMPLE_NUCLEUS):
        with rec.entry(entry):
            masked = ops.mask_logits(rec, x, allowed)
            ops.argmax(rec, masked, out)
            if entry != GREEDY:
                ops.sample(rec, masked, out, out, entry == SAMPLE_NUCLEUS)
    return rec.program()


class MaskedSampling:
    """Chooses tokens that a constraint allows, from the state `logits` of `main`; writes the state `token`."""

    def __init__(self, main: Player) -> None:
        view = main.program.views["logits"]
        layout = Layout(view.rows, view.cols, view.tiles, view.dtype)
        shared = {name: main.textures[name] for name in ("logits", "token")}
        program = masked_program(main.device.limits, layout)
        self.player = Player(main.device, program, main.options, shared)

    def play(self, sampler: Sampler, matcher: Matcher, step: int, vocab: int) -> None:
        """Starts choosing a token after `step` earlier draws; the device writes the token to the state `token`."""
        self.player.write(ALLOWED, 0, matcher.mask()[None])
        entry = f"masked_{sampler.entry or 'best'}"
        self.player.play(entry, **(sampler.scalars(step, vocab) if sampler.entry else {}))

    def close(self) -> None:
        """Releases its GL objects."""
        self.player.close()
