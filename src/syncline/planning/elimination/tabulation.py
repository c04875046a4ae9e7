"""The arithmetic of an elimination: builds each table, minimises it, and follows the pointers back.

For a step that eliminates v with scope D:

    message[d] = min over c of ( cost_v[c] + sum over inputs f of f[d, c] )

where d runs over the combinations of classes of D and c over the classes of v; back[d] is the lowest c
that attains it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from syncline.planning.elimination.folding import OWN, Input, Schedule, Step
from syncline.planning.elimination.layouts import Floats, Ints, refinement

BLOCK_CELLS = 1 << 17
"""Tables are built in blocks of at most this many cells (1 MB), which stay in the processor's cache."""


class Tabulation:
    """The messages and back-pointers of a schedule."""

    def __init__(self, plan: Schedule, node_costs: Sequence[Floats]) -> None:
        """Computes all tables of the plan; a message is dropped after its last use."""
        self._plan = plan
        self._costs = node_costs
        self._back: dict[int, NDArray[np.integer]] = {}
        self._members: dict[int, Ints] = {}
        self._arrays = dict(plan.arrays)
        last_uses = plan.last_uses()
        for index, step in enumerate(plan.steps):
            if step.source == index:
                self._compute(index, step)
            for given in step.inputs:
                if last_uses[given.number] == index < len(plan.steps) - 1:
                    self._arrays.pop(given.number, None)

    def choice(self) -> list[int]:
        """A best configuration of each node, from the last eliminated to the first."""
        chosen = [0] * len(self._costs)
        for step in reversed(self._plan.steps):
            at = tuple(
                chosen[other] if classes is None else classes.labels[chosen[other]]
                for other, classes in zip(step.scope, step.classes, strict=True)
            )
            pointer = int(self._back[step.source][at])
            chosen[step.node] = (
                pointer if step.own_classes is None else int(self._members[step.source][pointer])
            )
        return chosen

    def around_last(self) -> Floats:
        """For each configuration of the node eliminated last, the least that all other terms cost."""
        *others, last = self._plan.steps
        total = np.zeros(last.own_size)
        for given in last.inputs:
            total = total + self._aligned(last, given)
        total = total if last.own_classes is None else total[last.own_classes.labels]
        return total + sum(float(self._arrays[step.output]) for step in others if not step.scope)

    def _compute(self, index: int, step: Step) -> None:
        costs = self._costs[step.node]
        if step.own_classes is not None:
            self._members[index] = step.own_classes.cheapest(costs)
            costs = costs[self._members[index]]
        terms = [costs] + [self._aligned(step, given) for given in step.inputs]
        self._arrays[step.output], self._back[index] = minimise(terms, step.shape)

    def _aligned(self, step: Step, given: Input) -> Floats:
        """The input with its axes in the order of the scope and of its classes, the own axis last."""
        array = self._arrays[given.number]
        places = []
        for axis, (place, classes) in enumerate(zip(given.axes, given.classes, strict=True)):
            gather = refinement(step.own_classes if place == OWN else step.classes[place], classes)
            if gather is not None:
                array = array.take(gather, axis)
            places.append(len(step.scope) if place == OWN else place)
        shape = [1] * (len(step.scope) + 1)
        for axis, place in enumerate(places):
            shape[place] = array.shape[axis]
        order = sorted(range(len(places)), key=places.__getitem__)
        return np.ascontiguousarray(array.transpose(order)).reshape(shape)


def minimise(terms: Sequence[Floats], shape: tuple[int, ...]) -> tuple[Floats, NDArray[np.integer]]:
    """The minimum over the last axis of the sum of the terms, and where it is attained first.

    Args:
        terms: arrays that broadcast to ``shape`` plus one last axis; the first has that axis in full.
        shape: the shape of the result.
    """
    size = terms[0].shape[-1]
    ordered = sorted(terms, key=lambda term: term.size)
    if math.prod(shape) * size <= BLOCK_CELLS:
        return _lowest(_sum(ordered))
    message = np.empty(shape)
    back = np.empty(shape, dtype=np.min_scalar_type(size - 1))
    for block in blocks(shape, max(1, BLOCK_CELLS // size)):
        message[block], back[block] = _lowest(_sum([_part(term, block) for term in ordered]))
    return message, back


def _lowest(table: Floats) -> tuple[Floats, NDArray[np.integer]]:
    size = table.shape[-1]
    back = table.argmin(-1)
    message = table.reshape(-1)[back.reshape(-1) + np.arange(0, table.size, size)].reshape(back.shape)
    return message, back.astype(np.min_scalar_type(size - 1))


def blocks(shape: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cuts an array of this shape into boxes of at most ``limit`` entries, whole in the last axes."""
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= limit:
        axis -= 1
        inner *= shape[axis]
    lengths = [1] * axis + list(shape[axis:])
    if axis:
        lengths[axis - 1] = max(1, limit // inner)
    starts = [range(0, extent, length) for extent, length in zip(shape, lengths, strict=True)]
    for corner in itertools.product(*starts):
        yield tuple(slice(start, start + length) for start, length in zip(corner, lengths, strict=True))


def _sum(terms: Sequence[Floats]) -> Floats:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _part(term: Floats, block: tuple[slice, ...]) -> Floats:
    if term.ndim <= len(block):
        return term
    return term[tuple(cut if term.shape[axis] > 1 else slice(None) for axis, cut in enumerate(block))]
