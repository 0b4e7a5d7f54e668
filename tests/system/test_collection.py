"""Tests pausing Python's garbage collection."""

import gc

import pytest

from glgpt.system.memory import uncollected


def test_the_collection_is_paused_inside_and_as_before_afterwards():
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
        raise ValueError("inside")
    assert gc.isenabled()
