"""Tests that a page links few shader programs before its first token, and samples alike in shaders and JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
MAX_LINKED = 20  # shader programs linked before the first token
PROBED = 7  # shader programs that test the device's draw targets; a later visit skips this test
SLOW = 90_000  # ms
LINKS = """
  globalThis.linked = 0;
  const link = WebGL2RenderingContext.prototype.linkProgram;
  WebGL2RenderingContext.prototype.linkProgram = function (program) {
    globalThis.linked++;
    return link.call(this, program);
  };
"""
# Samples a token after one prompt with each of 150 seeds, on the device and in JavaScript (the host). A page samples on
# the host until the device's sampling shaders are compiled.
BOTH = """(settings) => glgpt.queue.run(async () => {
  const {model} = glgpt, {sampling} = model, Sampler = sampling.last.constructor;
  await sampling.prepare(new Sampler({...settings, seed: 0}));
  const ids = glgpt.encode('My lord, the');
  await model.cache.fill(ids);
  model.cache.again(ids);
  const logits = await sampling.logits();
  const found = [];
  for (let seed = 0; seed < 150; seed++) {
    const sampler = new Sampler({...settings, seed});
    if (seed) model.cache.again(ids); // a choice overwrites the stored greatest logit
    const token = await sampling.choose(sampler, seed % 7);
    found.push([token?.id ?? null, sampler.drawAsDevice(logits, seed % 7).id]);
  }
  return found;
})"""


SETTINGS = ({"topP": 0.9, "temperature": 0.8}, {}, {"temperature": 1.7, "minP": 0.02})


@pytest.mark.soak
def test_the_first_token_needs_few_programs(site: Path, serve: Callable[..., str], browse: Callable[..., Any]) -> None:
    page = browse(serve(site), LINKS)
    page.set_default_timeout(SLOW)
    linked, sampling = page.evaluate("glgpt.ready.then(() => [linked, glgpt.model.player.isPrepared('sample')])")
    assert linked - PROBED <= MAX_LINKED and not sampling
    for settings in SETTINGS:
        found = page.evaluate(BOTH, settings)
        assert len({device for device, _ in found}) > 5
        assert all(device == own for device, own in found if device is not None), settings
        assert sum(device is None for device, _ in found) < 5  # choices that the device leaves to the host
