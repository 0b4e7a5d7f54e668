"""Defines the text, the scripts and the preset that the tests of training in the page share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from glgpt.page import training
from glgpt.system.files import data_path
from glgpt.training import settings

Serve = Callable[..., str]
Browse = Callable[..., Any]

PLAY = data_path("tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")
SEED, STEPS = 5, 20
CONFIG = {"evalEvery": 10, "sampleEvery": 0}
QUIET = {"evalEvery": 0, "sampleEvery": 0}
TRAIN = """async ([options, stopAt]) => {
  const points = [];
  const done = glgpt.train({...options, onStep: (p) => {
    points.push([p.loss, p.gradNorm]);
    if (p.step === stopAt) void glgpt.pause();
  }});
  if (!stopAt) return [await done, points];
  done.catch(() => {}); // not awaited
  while (!['paused', 'failed'].includes(glgpt.training.session?.status) || !points.length) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return [glgpt.training.session.step, points];
}"""
TWELVE = {"text": PLAY, "config": QUIET, "steps": 12, "seed": SEED}
STATE = """async () => {
  const {state} = glgpt.training.session.checkpoint;
  return Array.from(new Uint8Array(await crypto.subtle.digest('SHA-256', state)));
}"""


@contextmanager
def presets_for_tests() -> Iterator[None]:
    """Adds the preset `mini`, which is small enough for tests, to the presets of `--train`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings.PRESETS, "mini", settings.Preset(2, 2, 32, 32, "bytes", 4, 1e-2, 0.99, 60))
        patch.setattr(training, "TOKENIZERS", ("bytes", "bpe:300"))
        yield


def whole_run(page: Any) -> Any:
    """Returns the hash of the state after twelve uninterrupted steps, and deletes the page's training run."""
    page.evaluate(TRAIN, [TWELVE, 0])
    bits = page.evaluate(STATE)
    page.evaluate("glgpt.training.reset()")
    return bits
