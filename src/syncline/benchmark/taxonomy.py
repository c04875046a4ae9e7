"""What kind of parallelism each strategy is, in the words of the field's surveys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def taxonomy(names: Iterable[str]) -> list[TaxonomyRow]:
    """The strategies of these names, in the registry's order."""
    wanted = set(names)
    return [
        TaxonomyRow(name, kind.exact, _KINDS.get(name, Kind("not classified", "-", "-")), kind.summary)
        for name, kind in STRATEGIES.items()
        if name in wanted
    ]
