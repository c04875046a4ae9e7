"""The strategies by name. A new strategy is one module and one line here."""

from __future__ import annotations

from syncline.errors import StrategyError, unknown_name
from syncline.options import parse_options
from syncline.strategies.daso import Daso
from syncline.strategies.data import DataParallel
from syncline.strategies.diloco import DiLoCo
from syncline.strategies.hierarchical import Hierarchical
from syncline.strategies.local.strategy import LocalParallel
from syncline.strategies.local_sgd import LocalSgd
from syncline.strategies.pipeline import Pipeline
from syncline.strategies.planned.strategy import Planned
from syncline.strategies.planned.tensor import TensorParallel
from syncline.strategies.protocol import Strategy
from syncline.strategies.sharded import Sharded
from syncline.strategies.single import Single
from syncline.strategies.zero1 import Zero1

STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind
    for kind in (
        Single,
        DataParallel,
        Sharded,
        Zero1,
        TensorParallel,
        Planned,
        Daso,
        LocalSgd,
        DiLoCo,
        Hierarchical,
        Pipeline,
        LocalParallel,
    )
}


def parse_strategy(text: str) -> Strategy:
    """The strategy of a text like `sharded:group=2,reshard-after-forward=false`."""
    name, _, options = text.partition(":")
    kind = STRATEGIES.get(name)
    if kind is None:
        raise StrategyError(unknown_name("strategy", name, STRATEGIES))
    return parse_options(kind, options, what=f"strategy '{name}'", error=StrategyError)
