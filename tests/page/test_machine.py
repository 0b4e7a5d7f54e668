"""Tests the pictures that a page shows while it loads: which values of which token are in each cell."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import pytest

from glgpt import LanguageModel
from glgpt.models.views import stages
from glgpt.page.prompts import Prompts
from glgpt.page.recorded import CELL, recorded_json, recorded_machine, rows_of
from glgpt.plots.cells import REACH, folded
from glgpt.system.files import data_path


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    with LanguageModel.from_pretrained() as model:
        yield model


def test_a_block_has_the_cells_of_the_page(model: LanguageModel) -> None:
    assert stages(model.config, 2) == [
        ("QKV", ["h.2.attn.q", "h.2.attn.k", "h.2.attn.v"], None),
        ("scores", ["h.2.attn.scores"], None),
        ("mix", ["h.2.attn.z"], "attn"),
        ("residual", ["h.2.resid_mid"], None),
        ("MLP", ["h.2.mlp.act"], "mlp"),
        ("residual", ["h.2.resid_post"], None),
    ]


def test_a_row_has_all_that_a_token_has(model: LanguageModel) -> None:
    """Fails if queries and scores are mixed up. They have the same shape if a head has as many columns as tokens."""
    config = model.config
    ids = [(5 * i) % config.vocab_size for i in range(config.n_embd // config.n_head)]
    _, found = model.run_with_cache(ids, ["h.1.attn.q", "h.1.attn.k", "h.1.attn.scores", "h.1.mlp.act"])
    t = 11
    expected = np.concatenate([found["h.1.attn.q"][:, t], found["h.1.attn.k"][:, t]])
    np.testing.assert_array_equal(rows_of(found, ["h.1.attn.q", "h.1.attn.k"], t), expected)
    scores = rows_of(found, ["h.1.attn.scores"], t)
    np.testing.assert_array_equal(scores, found["h.1.attn.scores"][:, t, : t + 1])
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(rows_of(found, ["h.1.mlp.act"], t), found["h.1.mlp.act"][t : t + 1])


def test_a_row_of_scores_begins_with_the_window() -> None:
    """Fails if the scores of keys before a sliding window are drawn: their -inf would hide all scores of the layer."""
    scores = np.float32([[[1, -np.inf, -np.inf], [2, 3, -np.inf], [-np.inf, 4, 5]]])
    assert rows_of({"h.0.attn.scores": scores}, ["h.0.attn.scores"], 2).tolist() == [[4, 5]]


def test_a_text_that_ends_with_its_prompt_is_not_recorded(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = Prompts.load(data_path("weights/shakespeare"), model.config, ["O"])
    monkeypatch.setattr(model, "generate_ids", lambda *_, **__: iter(()))  # the first token ends the text
    assert recorded_json(model, prompts) is None


def test_pictures_are_of_what_went_in_before_a_token(model: LanguageModel) -> None:
    given, ids = 5, model.encode("O Romeo, Romeo! wherefore art thou Romeo?")
    logits, found = model.run_with_cache(ids, ["h.3.resid_post"])
    machine = recorded_machine(model, ids, given, logits)
    assert machine["at"][0] == given and machine["at"][-1] == len(ids) - 1 and machine["cell"] == list(CELL)
    wide, high = CELL
    columns = model.config.n_layer + 2
    for at, data in zip(machine["at"], machine["pictures"], strict=True):
        picture = np.frombuffer(base64.b64decode(data), np.uint8).reshape(6 * high, columns * wide)
        for values, place in (
            (found["h.3.resid_post"][at - 1 : at], picture[5 * high :, 4 * wide : 5 * wide]),
            (logits[at - 1 : at], picture[:, -wide:]),
        ):
            aspect = 5 * high / len(place)
            shown = folded(values, aspect)
            far = REACH * np.abs(shown).mean()
            corners = shown[0, 0], shown[len(shown) * (len(place) - 1) // len(place), 0]
            expected = [127 + 127 * np.clip(v / far, -1, 1) for v in corners]
            np.testing.assert_allclose([place[0, 0], place[-1, 0]], expected, atol=0.51)
