"""Lists the strategies by which the ServerApp combines the updates of a round.

`STRATEGIES` is the only list of strategies: the command line, the checks of a session, the dashboard and the table in
the documentation use it. Only the functions that create a strategy import Flower, so that `glgpt federate --help` works
without Flower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import ArgumentError, written
from glgpt.federation.protocol import Vector
from glgpt.federation.rules import TRIM, Outer, median, trimmed_mean

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy as FlowerStrategy

Compare = Callable[[NDArray[np.float32]], Vector]  # combines the updates [k, n] of k clients by comparing them
DEFAULT = "diloco"
# Options with which a Flower strategy sends each round to all nodes that it is given. A node is a site (a gateway with
# its clients) or a supernode.
SITES: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}


class Options(Protocol):
    """The terms of a session that the factory of a strategy reads."""

    @property
    def quorum(self) -> int:
        """Returns the minimum number of updates in a round."""

    @property
    def public(self) -> bool:
        """True if updates are clipped. A strategy that has `trims` and adds no noise then also uses a trimmed mean."""

    @property
    def outer_lr(self) -> float:
        """Returns the learning rate of the outer optimizer."""

    @property
    def outer_momentum(self) -> float:
        """Returns the momentum of the outer optimizer."""

    @property
    def dp_noise(self) -> float:
        """Returns the noise multiplier of differential privacy; 0: no noise."""

    @property
    def dp_clip(self) -> float:
        """Returns the norm to which updates are clipped if `dp_noise` is not 0."""


def _diloco(options: Options) -> FlowerStrategy:
    from glgpt.federation.aggregation.diloco import Diloco

    return Diloco(Outer(options.outer_lr, options.outer_momentum), options.public, **SITES)


def _fedavg(options: Options) -> FlowerStrategy:
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    from glgpt.federation.aggregation.diloco import Diloco
    from glgpt.federation.aggregation.updates import ALIKE

    if options.dp_noise:  # clients have equal weights, so that the effect of one client on the mean is bounded
        alike = FedAvg(weighted_by_key=ALIKE, **SITES)
        return DifferentialPrivacyServerSideFixedClipping(alike, options.dp_noise, options.dp_clip, options.quorum)
    return Diloco(Outer(1.0, 0.0), options.public, **SITES)


def _fedadam(options: Options) -> FlowerStrategy:
    from flwr.serverapp.strategy import FedAdam

    return FedAdam(eta=0.01, tau=1e-3, **SITES)


def _median(options: Options) -> FlowerStrategy:
    from flwr.serverapp.strategy import FedMedian

    return FedMedian(**SITES)


def _trimmed(options: Options) -> FlowerStrategy:
    from flwr.serverapp.strategy import FedTrimmedAvg

    return FedTrimmedAvg(beta=TRIM, **SITES)


@dataclass(frozen=True)
class Strategy:
    """A way to combine the updates of a round.

    `factory` returns the Flower strategy for a session. `state` names the attributes of the Flower strategy that
    checkpoints store. Each of these attributes is None, or a dictionary with one array under the key `updates.KEY`.
    With `trims`, public sessions use a trimmed mean unless they add noise. If updates are too large to be sent
    separately, a gateway combines them with `compare`, as the Flower strategy would; None: it sends their mean instead.
    """

    factory: Callable[[Options], FlowerStrategy]
    summary: str
    state: tuple[str, ...] = ()
    compare: Compare | None = None
    supports_dp: bool = False  # bounds the effect of one device, as differential privacy requires
    trims: bool = False

    @property
    def needs_all_updates(self) -> bool:
        """True if all updates are compared with each other, so that a session must have only one gateway."""
        return self.compare is not None


STRATEGIES: dict[str, Strategy] = {
    "diloco": Strategy(_diloco, "mean weighted by tokens, then a Nesterov step", ("velocity",), trims=True),
    "fedavg": Strategy(_fedavg, "mean weighted by tokens", supports_dp=True, trims=True),
    "fedadam": Strategy(_fedadam, "Flower's FedAdam", ("m_t", "v_t")),
    "median": Strategy(_median, "Flower's FedMedian", compare=median),
    "trimmed": Strategy(_trimmed, "Flower's FedTrimmedAvg", compare=partial(trimmed_mean, least=0)),
}
STATE = tuple(name for strategy in STRATEGIES.values() for name in strategy.state)


def get_strategy(name: str) -> Strategy:
    """Returns the strategy with this name. Raises ArgumentError if there is none."""
    if name not in STRATEGIES:
        raise ArgumentError(f"unknown strategy {written(name)}; expected {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def checked_name(name: str) -> str:
    """Returns `name` unchanged. Raises ArgumentError if no strategy has this name."""
    get_strategy(name)
    return name


def create(name: str, options: Options) -> FlowerStrategy:
    """Returns the Flower strategy for a session.

    Raises ArgumentError for an unknown name, and if `options` demand noise but the strategy does not support it.
    """
    strategy = get_strategy(name)
    if options.dp_noise and not strategy.supports_dp:
        raise ArgumentError(f"strategy {name} has no differential privacy; use {' or '.join(names('supports_dp'))}")
    return strategy.factory(options)


def comparison(name: str, options: Options) -> Compare | None:
    """Returns the function that combines updates by comparing them; None if the session only needs their mean."""
    strategy = get_strategy(name)
    return trimmed_mean if options.public and strategy.trims and not options.dp_noise else strategy.compare


def names(property_: str) -> list[str]:
    """Returns the names of the strategies for which a property, such as `supports_dp`, is true."""
    return [name for name, strategy in STRATEGIES.items() if getattr(strategy, property_)]


def description(name: str, options: Options) -> str:
    """Returns how a session combines its updates, in words for the dashboard."""
    strategy = get_strategy(name)
    trimmed = " and trimmed" if strategy.trims and not options.dp_noise else ""
    return f"{name} ({strategy.summary})" + (f", clipped{trimmed}" if options.public else "")
