"""The strategies by name. A new strategy is one module and one line here.

A strategy is imported when it is asked for: what one of them needs of torch can take a second to import,
in every rank of every run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from syncline.errors import StrategyError, unknown_name
from syncline.options import parse_options
from syncline.strategies.protocol import Strategy

_CLASSES = {
    "single": "single:Single",
    "data": "data:DataParallel",
    "sharded": "sharded:Sharded",
    "zero1": "zero1:Zero1",
    "tensor": "planned.tensor:TensorParallel",
    "planned": "planned.strategy:Planned",
    "daso": "daso:Daso",
    "local-sgd": "local_sgd:LocalSgd",
    "diloco": "diloco:DiLoCo",
    "hierarchical": "hierarchical:Hierarchical",
    "pipeline": "pipeline:Pipeline",
    "local": "local.strategy:LocalParallel",
}


class _Strategies(Mapping[str, type[Strategy]]):
    """Every strategy's class by its name."""

    def __getitem__(self, name: str) -> type[Strategy]:
        module, _, kind = _CLASSES[name].partition(":")
        return getattr(importlib.import_module(f"syncline.strategies.{module}"), kind)

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


STRATEGIES: Mapping[str, type[Strategy]] = _Strategies()


def parse_strategy(text: str) -> Strategy:
    """The strategy of a text like `sharded:group=2,reshard-after-forward=false`."""
    name, _, options = text.partition(":")
    kind = STRATEGIES.get(name)
    if kind is None:
        raise StrategyError(unknown_name("strategy", name, STRATEGIES))
    return parse_options(kind, options, what=f"strategy '{name}'", error=StrategyError)
