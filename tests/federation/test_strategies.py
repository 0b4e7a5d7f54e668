"""Tests that sessions, the command line and the documentation use the table of strategies.

test_flower_session runs the strategies.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_session import make_session
from pydantic import ValidationError

from glgpt.cli.parser import build_parser
from glgpt.errors import ArgumentError
from glgpt.federation import rules
from glgpt.federation.aggregation import strategies
from glgpt.federation.aggregation.strategies import DEFAULT, STRATEGIES

FLOWER = "flwr.serverapp.strategy.fedtrimmedavg"
DOCS = Path(__file__).parents[2] / "docs"


def test_an_unlisted_strategy_is_refused() -> None:
    session = make_session().model_copy(update={"strategy": "fedprox"})
    with pytest.raises(ArgumentError, match="unknown strategy 'fedprox'; expected diloco, fedavg, "):
        strategies.create(session.strategy, session)


def test_a_session_has_a_listed_strategy() -> None:
    assert make_session(strategy="median").strategy == "median"
    with pytest.raises(ValidationError, match="unknown strategy 'fedprox'; expected diloco, "):
        make_session(strategy="fedprox")


def test_noise_needs_a_strategy_that_supports_it() -> None:
    """Regression: noise replaced the session's strategy with FedAvg."""
    with pytest.raises(ArgumentError, match="strategy fedadam has no differential privacy; use fedavg"):
        strategies.create("fedadam", make_session(strategy="fedadam", dp_noise=1.0))


def test_the_command_line_offers_all_strategies() -> None:
    parser = build_parser()
    for name in STRATEGIES:
        args = parser.parse_args(["federate", "serve", "--out", "run", "--strategy", name])
        assert args.strategy == name
    assert parser.parse_args(["federate", "serve", "--out", "run"]).strategy == DEFAULT


def test_the_documentation_lists_all_strategies() -> None:
    rows = [line for path in DOCS.rglob("*.md") for line in path.read_text("utf-8").splitlines()]
    yes = {True: "yes", False: "no"}
    for name, strategy in STRATEGIES.items():
        shown = f"`{name}`{' (default)' if name == DEFAULT else ''}"
        state = ", ".join(f"`{one}`" for one in strategy.state) or "none"
        flags = f"{yes[not strategy.needs_all_updates]} | {yes[strategy.supports_dp]}"
        assert f"| {shown} | {strategy.summary} | {state} | {flags} |" in rows
    options = {name for row in rows for name in re.findall(r"--strategy (\w+)", row)}
    assert options and options <= STRATEGIES.keys()


def test_the_dashboard_describes_what_is_done() -> None:
    for name, changed, wanted in (
        ("fedavg", {}, "fedavg (mean weighted by tokens)"),
        ("fedavg", {"public": True}, "fedavg (mean weighted by tokens), clipped and trimmed"),
        ("fedavg", {"public": True, "dp_noise": 1.0}, "fedavg (mean weighted by tokens), clipped"),
        ("median", {"public": True}, "median (Flower's FedMedian), clipped"),
    ):
        assert strategies.description(name, make_session(strategy=name, **changed)) == wanted


@pytest.mark.parametrize("clients", [3, 5, 12])
def test_a_comparison_is_that_of_the_flower_strategy(clients: int) -> None:
    """Fails if a gateway that combines large updates itself gets another result than Flower from separate updates."""
    flower = pytest.importorskip(FLOWER, reason="make test-federate has what this needs")
    rows = np.random.default_rng(clients).normal(size=(clients, 50)).astype(np.float32)
    trimmed, median = STRATEGIES["trimmed"].compare, STRATEGIES["median"].compare
    assert trimmed and median
    np.testing.assert_allclose(trimmed(rows), flower.trim_mean(rows, rules.TRIM), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(median(rows), np.median(rows, axis=0))
