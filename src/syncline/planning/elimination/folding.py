"""The schedule of an elimination: which tables are built, from what, and which repeat an earlier one.

The layers of a transformer are equal blocks, so that eliminating the same node of two layers combines
equal costs in an equal way. Costs are numbered by content and messages by the step that made them; two
steps whose inputs have the same numbers in the same places give the same message and the same
back-pointers, and only the first is computed. All of this is known before any arithmetic is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Classes, Floats, join
from syncline.planning.elimination.ordering import Ordering

OWN = -1
"""The place of the eliminated node among the axes of an input."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """A cost that depends on several nodes: an edge's table, or the message of a step."""

    number: int
    """Equal numbers mean equal arrays, and equal classes on each axis."""
    nodes: tuple[int, ...]
    classes: tuple[Classes | None, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """A factor as a step uses it: ``axes[k]`` is the place of its axis k in the step's scope, or OWN."""

    number: int
    axes: tuple[int, ...]
    classes: tuple[Classes | None, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Eliminates one node: a message over its scope, and a back-pointer for each entry of it."""

    node: int
    scope: tuple[int, ...]
    classes: tuple[Classes | None, ...]
    """By which classes the message is indexed, one for each node of the scope."""
    shape: tuple[int, ...]
    own_classes: Classes | None
    own_size: int
    inputs: tuple[Input, ...]
    output: int
    """The number of the message."""
    source: int
    """The index of the step that computes it; its own index unless it repeats an earlier one."""

    @property
    def cells(self) -> int:
        """The entries of the table that is minimised over the node."""
        return math.prod(self.shape) * self.own_size


@dataclass(slots=True)
class Schedule:
    """The steps of an elimination, in order."""

    steps: list[Step] = field(default_factory=list)
    arrays: dict[int, Floats] = field(default_factory=dict)
    """The matrices of the edges, by number."""

    def computed(self) -> list[Step]:
        """The steps that repeat no earlier one."""
        return [step for index, step in enumerate(self.steps) if step.source == index]

    @property
    def cells(self) -> int:
        """The cells of all computed tables."""
        return sum(step.cells for step in self.computed())

    @property
    def width(self) -> int:
        """The largest number of nodes that a message depends on."""
        return max((len(step.scope) for step in self.steps), default=0)

    def last_uses(self) -> dict[int, int]:
        """For each factor's number, the index of the last step that takes it in."""
        return {given.number: index for index, step in enumerate(self.steps) for given in step.inputs}

    def peak_bytes(self) -> tuple[int, int]:
        """The most bytes that messages and back-pointers take at once, and the node with the largest."""
        last_uses = self.last_uses()
        entries = {step.output: math.prod(step.shape) for step in self.computed()}
        now = peak = 0
        for index, step in enumerate(self.steps):
            if step.source == index:
                now += entries[step.output] * (8 + pointer_bytes(step))
                peak = max(peak, now)
            now -= sum(
                8 * entries.get(number, 0)
                for number in {given.number for given in step.inputs}
                if last_uses[number] == index
            )
        return peak, max(self.steps, key=lambda step: entries[step.output]).node


def pointer_bytes(step: Step) -> int:
    """The bytes of one back-pointer of the step."""
    return np.min_scalar_type(step.own_size - 1).itemsize


def schedule(instance: Instance, ordering: Ordering, *, fold: bool) -> Schedule:
    """Lays out the elimination of the instance in the given order.

    Args:
        instance: what to eliminate.
        ordering: in which order; any is exact.
        fold: whether equal steps share one table.
    """
    return _Scheduler(instance, fold).run(ordering)


class _Scheduler:
    def __init__(self, instance: Instance, fold: bool) -> None:
        self._fold = fold
        self._sizes = instance.sizes()
        self._own_numbers = number_equal(instance.costs) if fold else range(len(instance.costs))
        self._plan = Schedule()
        self._joined: dict[tuple[int, int], tuple[Classes | None, ...]] = {}
        self._known: dict[object, tuple[int, int]] = {}
        self._attached: list[list[Factor]] = [[] for _ in instance.costs]
        numbers: dict[int, int] = {}
        for ends, table in zip(instance.ends, instance.tables, strict=True):
            number = numbers.setdefault(id(table), len(numbers))
            self._plan.arrays[number] = table.matrix
            self._attach(Factor(number, ends, (table.rows, table.cols)))
        self._next = len(numbers)

    def run(self, ordering: Ordering) -> Schedule:
        for node in ordering.order:
            self._plan.steps.append(self._step(node))
        return self._plan

    def _attach(self, factor: Factor) -> None:
        for node in factor.nodes:
            self._attached[node].append(factor)

    def _step(self, node: int) -> Step:
        factors = sorted(self._attached[node], key=lambda factor: (factor.number, factor.nodes.index(node)))
        joined: dict[int, Classes | None] = {}
        for factor in factors:
            for other, classes in zip(factor.nodes, factor.classes, strict=True):
                joined[other] = self._join(joined[other], classes) if other in joined else classes
        own_classes = joined.pop(node, None)
        places = {other: place for place, other in enumerate(joined)} | {node: OWN}
        inputs = tuple(
            Input(factor.number, tuple(places[other] for other in factor.nodes), factor.classes)
            for factor in factors
        )
        index = len(self._plan.steps)
        key = (self._own_numbers[node], tuple((given.number, given.axes) for given in inputs))
        output, source = self._known.setdefault(key if self._fold else index, (self._next, index))
        self._next = max(self._next, output + 1)
        scope, scope_classes = tuple(joined), tuple(joined.values())
        self._replace(node, factors, Factor(output, scope, scope_classes))
        return Step(
            node=node,
            scope=scope,
            classes=scope_classes,
            shape=tuple(map(self._count, scope, scope_classes)),
            own_classes=own_classes,
            own_size=self._count(node, own_classes),
            inputs=inputs,
            output=output,
            source=source,
        )

    def _count(self, node: int, classes: Classes | None) -> int:
        return self._sizes[node] if classes is None else classes.count

    def _replace(self, node: int, factors: Sequence[Factor], message: Factor) -> None:
        for factor in factors:
            for other in factor.nodes:
                if other != node:
                    self._attached[other].remove(factor)
        self._attach(message)

    def _join(self, left: Classes | None, right: Classes | None) -> Classes | None:
        if left is right or left is None or right is None:
            return left if left is right else None
        key = (id(left), id(right))
        if key not in self._joined:
            self._joined[key] = (join(left, right), left, right)  # holding both keeps their ids taken
        return self._joined[key][0]


def number_equal(arrays: Sequence[Floats]) -> list[int]:
    """Numbers the arrays so that equal ones have the same number."""
    by_object: dict[int, int] = {}
    by_content: dict[tuple[int, bytes], int] = {}
    numbers = []
    for array in arrays:
        if id(array) not in by_object:
            content = (len(array), array.tobytes())
            by_object[id(array)] = by_content.setdefault(content, len(by_content))
        numbers.append(by_object[id(array)])
    return numbers
