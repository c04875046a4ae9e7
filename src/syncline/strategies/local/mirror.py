"""The head `mirror`: copies of layers above the block, as many as a cap on FLOPs allows.

The layers above a block are cut into units, each of which begins with trained layers. The head is a chain of
units in the model's order whose shapes fit: first the cheapest chain that ends in the logits, then further
units spread evenly over the depth, while the head stays under the cap (Ma et al., "Scaling supervised local
learning with augmented auxiliary networks", 2024). Weights start as copies and are trained by the block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from syncline.errors import StrategyError
from syncline.graph.cutting import CutPoint, Cutting, StagePart
from syncline.planning.stages import candidates
from syncline.strategies.local.heads import Head, Shape
from syncline.strategies.stages.program import StageProgram


@dataclass(frozen=True, slots=True)
class Unit:
    """A run of layers between two cut points."""

    entry: CutPoint
    exit: CutPoint
    takes: Shape
    gives: Shape
    flops: int
    """Of its forward pass."""
    trains: bool
    """Whether it has parameters."""


def units_above(cutting: Cutting, start: CutPoint, known: dict[tuple[int, int], Unit]) -> list[Unit]:
    """The units from a cut point to the logits; the first may have nothing to train.

    `known` keeps what was worked out for other starts.
    """
    points = [start, *(p for p in candidates(cutting) if p.after > start.after), cutting.logits]

    def unit(entry: CutPoint, exit: CutPoint) -> Unit:
        key = entry.after, exit.after
        if key not in known:
            known[key] = _unit(cutting, entry, exit)
        return known[key]

    # A unit ends where the next layers with parameters begin.
    inner = [
        before for before, point in pairwise(points) if before is not start and unit(before, point).trains
    ]
    return [unit(entry, exit) for entry, exit in pairwise([start, *inner, cutting.logits])]


def choose_chain(units: Sequence[Unit], cap_flops: float) -> list[Unit]:
    """The units of the head: the cheapest chain to the logits, and what else fits under the cap."""
    chosen = _cheapest(units)
    left = cap_flops - sum(units[index].flops for index in chosen)
    while True:
        fitting = [index for index in range(len(units)) if _fits(units, chosen, index, left)]
        if not fitting:
            return [units[index] for index in chosen]
        added = max(fitting, key=lambda index: min(abs(index - other) for other in chosen))
        left -= units[added].flops
        chosen = sorted([*chosen, added])


class MirrorHead(Head):
    """Runs a chain of units on weights of its own, but for those that it shares with the model."""

    def __init__(
        self,
        training: Sequence[StageProgram],
        evaluation: Sequence[StageProgram],
        state: Mapping[str, Tensor],
        *,
        shares: Sequence[str] = (),
    ) -> None:
        """`state` is the model's, from which weights are copied; those in `shares` come with each call."""
        super().__init__()
        self._training_programs = list(training)
        self._evaluation_programs = list(evaluation)
        self._shares = list(shares)
        names = dict.fromkeys(name for one in (*training, *evaluation) for name in one.state_names)
        self._names = [name for name in names if name not in shares]
        for name in self._names:
            tensor, own = state[name], name.replace(".", "/")
            if isinstance(tensor, nn.Parameter):
                copy = tensor.detach().clone()
                self.register_parameter(own, nn.Parameter(copy, requires_grad=tensor.requires_grad))
            else:
                self.register_buffer(own, tensor.clone())

    def forward(self, activation: Tensor, batch: Sequence[Tensor], state: Mapping[str, Tensor]) -> Tensor:
        """Logits by the copied layers."""
        own = {name: getattr(self, name.replace(".", "/")) for name in self._names}
        own |= {name: state[name] for name in self._shares}
        for program in self._training_programs if self.training else self._evaluation_programs:
            activation = program(own, batch, activation)
        return activation


def chain_parts(cutting: Cutting, chain: Sequence[Unit]) -> list[StagePart]:
    """The stages of a chain in a graph of the same model, perhaps in another mode."""
    return [cutting.part(cutting.point(unit.entry.name), cutting.point(unit.exit.name)) for unit in chain]


def mirror_programs(
    chain: Sequence[Unit], training: Cutting, evaluation: Cutting, device: torch.device
) -> tuple[list[StageProgram], list[StageProgram]]:
    """What runs a chain, in training and in evaluation."""
    of_mode = [
        [StageProgram(cutting.graph, part, device) for part in chain_parts(cutting, chain)]
        for cutting in (training, evaluation)
    ]
    return of_mode[0], of_mode[1]


def _unit(cutting: Cutting, entry: CutPoint, exit: CutPoint) -> Unit:
    graph = cutting.graph
    part = cutting.part(entry, exit)
    return Unit(
        entry=entry,
        exit=exit,
        takes=graph.tensors[entry.tensor].shape,
        gives=graph.tensors[exit.tensor].shape,
        flops=sum(graph.ops[op].forward_flops for op in part.ops),
        trains=bool(part.parameters),
    )


def _cheapest(units: Sequence[Unit]) -> list[int]:
    """The chain of fewest FLOPs from the block's end to the logits."""
    best = [math.inf] * len(units)
    source = [-1] * len(units)
    for index, unit in enumerate(units):
        if unit.takes == units[0].takes:
            best[index] = unit.flops
        for before in range(index):
            cost = best[before] + unit.flops
            if units[before].gives == unit.takes and cost < best[index]:
                best[index], source[index] = cost, before
    if math.isinf(best[-1]):
        raise StrategyError(
            f"local: head=mirror finds no layers that lead from an activation of shape {units[0].takes} to "
            "the logits.\nUse another head."
        )
    chain = [len(units) - 1]
    while source[chain[0]] >= 0:
        chain.insert(0, source[chain[0]])
    return chain


def _fits(units: Sequence[Unit], chosen: Sequence[int], index: int, left: float) -> bool:
    """Whether a unit can be put into the chain: it keeps the shape that it finds there."""
    unit = units[index]
    before = [units[other] for other in chosen if other < index]
    shape = before[-1].gives if before else units[0].takes
    return index not in chosen and unit.takes == unit.gives == shape and unit.flops <= left
