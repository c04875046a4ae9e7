"""What kind of parallelism each strategy is, in the words of the field's surveys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from syncline.benchmark.entries import Entry
from syncline.strategies.registry import STRATEGIES


@dataclass(frozen=True, slots=True)
class Kind:
    """One strategy among the others."""

    kind: str
    splits: str
    sends: str


_KINDS = {
    "single": Kind("none", "nothing", "nothing"),
    "data": Kind("data", "batch", "gradients, all-reduce in backward"),
    "zero1": Kind("data, sharded", "batch, optimizer state", "gradients, then updated weights"),
    "sharded": Kind(
        "data, sharded", "batch, weights, gradients, optimizer state", "weights twice, gradients once"
    ),
    "tensor": Kind("intra-layer", "large products, rest by batch", "activations and their gradients"),
    "planned": Kind("chosen op by op", "what the plan says", "what the plan says"),
    "pipeline": Kind("inter-layer", "layers, micro-batches", "activations and their gradients"),
    "local": Kind("inter-layer, local losses", "layers", "activations, forward only"),
    "daso": Kind("data, asynchronous", "batch", "gradients in a node; weights between, seldom"),
    "local-sgd": Kind("data, periodic", "batch", "weights, every few steps"),
    "diloco": Kind("data, periodic", "batch", "changes of weights, every few steps"),
    "hierarchical": Kind("data, periodic", "batch", "weights, often in a node, seldom between"),
}


@dataclass(frozen=True, slots=True)
class TaxonomyRow:
    """A strategy with its kind."""

    name: str
    exact: bool
    kind: Kind
    summary: str


def taxonomy(entries: Iterable[Entry]) -> list[TaxonomyRow]:
    """Their strategies in the registry's order; options that change the guarantee are a row of their own."""
    wanted: dict[str, dict[str, bool]] = {}
    for one in entries:
        is_usual = one.strategy in STRATEGIES and STRATEGIES[one.strategy].exact is one.exact
        wanted.setdefault(one.strategy, {})[one.strategy if is_usual else one.label] = one.exact
    return [
        TaxonomyRow(name, exact, _KINDS.get(strategy, Kind("not classified", "-", "-")), kind.summary)
        for strategy, kind in STRATEGIES.items()
        for name, exact in wanted.get(strategy, {}).items()
    ]
