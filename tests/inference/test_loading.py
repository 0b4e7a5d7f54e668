"""Tests `glgpt.load`, which chooses the class of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from glgpt.errors import ArgumentError
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.inference.stages.model import SplitLanguageModel

WIDE = Path(__file__).parents[1] / "goldens/wide"
PLAN = "0-0@here,1-1@here"


def test_load_returns_the_class_that_the_options_ask_for() -> None:
    with load(WIDE, device="software", rest=None, plan=None) as whole:
        assert type(whole) is LanguageModel
        ids = list(whole.generate_ids([1, 2, 3], 4, temperature=0))
    with load(WIDE, device="software", plan=PLAN) as split:
        assert type(split) is SplitLanguageModel
        assert list(split.generate_ids([1, 2, 3], 4, temperature=0)) == ids and len(ids) == 4


def test_a_whole_model_refuses_servers_and_names_the_function_that_takes_them() -> None:
    for options in ({"rest": "ws://127.0.0.1:1"}, {"plan": PLAN}):
        with pytest.raises(ArgumentError, match=r"splits a model over servers; load it with glgpt\.load"):
            LanguageModel.from_pretrained(WIDE, device="software", **options)
    with pytest.raises(ArgumentError, match="needs rest or plan"):
        SplitLanguageModel.from_pretrained(WIDE, device="software")
