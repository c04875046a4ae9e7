"""A plan as people read it: by layer, equal blocks once, and only the ops that matter."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from syncline.graph.blocks import Repetition, fold
from syncline.graph.opgraph import Op, OpGraph, TensorKind
from syncline.graph.space import DimKind
from syncline.planning.breakdown import Cost
from syncline.planning.parameter_costs import Keeping
from syncline.planning.plan import Plan
from syncline.planning.roles import batch_dims

OTHERS = "other ops"
_LONG = 12
"""A section with more rows than this joins those that are split alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Ops that are split alike."""

    name: str
    kind: str
    """What they do, such as `linear`; empty for several kinds."""
    count: int
    split: str
    """Such as `b0 (batch) /8 over node`; empty when every device runs the whole op."""
    keep: str
    """How their parameters are kept; empty if they have none."""
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Equal blocks that are split alike, or the ops between blocks."""

    label: str
    """Such as `blocks.1-10`; empty between blocks."""
    blocks: int
    rows: tuple[LayerRow, ...]

    @property
    def seconds(self) -> float:
        """Of a step, spent in all its blocks."""
        return sum(row.cost.total_s for row in self.rows)


def sections(plan: Plan, graph: OpGraph, costs: Mapping[str, Cost]) -> tuple[Section, ...]:
    """The plan by layer; `costs` has each op's share, by name."""
    reader = _Reader(plan, graph, costs)
    found: list[Section] = []
    for is_block, items in itertools.groupby(fold(graph), key=lambda item: isinstance(item, Repetition)):
        if is_block:
            for repetition in items:
                if isinstance(repetition, Repetition):
                    found += reader.blocks(repetition)
        else:
            found.append(reader.section("", [[op] for op in items if isinstance(op, Op)], 1))
    return tuple(found)


def describe_split(split: Mapping[str, Sequence[str]], plan: Plan, batch: str | None = None) -> str:
    """A sharding in words; `batch` is the dim that runs over the samples."""
    axes = {axis.name: axis for axis in plan.axes}
    words = []
    for dim, names in split.items():
        parts = math.prod(axes[name].size for name in names)
        levels = " and ".join(dict.fromkeys(axes[name].level for name in names))
        words.append(f"{dim}{' (batch)' if dim == batch else ''} /{parts} over {levels}")
    return ", ".join(words)


class _Reader:
    """Reads one plan."""

    def __init__(self, plan: Plan, graph: OpGraph, costs: Mapping[str, Cost]) -> None:
        self._plan = plan
        self._graph = graph
        self._costs = costs
        self._batch = batch_dims(graph)

    def blocks(self, repetition: Repetition) -> Iterator[Section]:
        """Runs of blocks that are split alike."""
        pairs = list(zip(repetition.indices, repetition.blocks, strict=True))
        for _, run in itertools.groupby(pairs, key=lambda pair: self._signature(pair[1])):
            indices, bodies = zip(*run, strict=True)
            alike = [[self._graph.ops[op] for op in ops] for ops in zip(*bodies, strict=True)]
            span = indices[0] if len(indices) == 1 else f"{indices[0]}-{indices[-1]}"
            label = f"{repetition.container}.{span}" if repetition.container else span
            yield self.section(label, alike, len(indices), f"{repetition.container}.{indices[0]}.")

    def section(self, label: str, alike: list[list[Op]], blocks: int, prefix: str = "") -> Section:
        """A section of ops, each with those of the other blocks that do the same."""
        rows: list[LayerRow] = []
        rest, count = Cost(), 0
        for ops in alike:
            if self._matters(ops[0]):
                rows.append(self._row(ops, prefix))
            else:
                count += len(ops)
                for op in ops:
                    rest.add(self._costs[op.name])
        rows = _join(rows, anywhere=False)
        if len(rows) > _LONG:
            rows = _join(rows, anywhere=True)
        if count:
            rows.append(LayerRow(name=OTHERS, kind="", count=count, split="", keep="", cost=rest))
        return Section(label=label, blocks=blocks, rows=tuple(rows))

    def _signature(self, block: Sequence[int]) -> tuple[str, ...]:
        return tuple(str(self._plan.ops[self._graph.ops[op].name]) for op in block)

    def _row(self, ops: Sequence[Op], prefix: str) -> LayerRow:
        op, sharding = ops[0], self._plan.ops[ops[0].name]
        dim = self._batch.get(op.id)
        batch = op.space.dims[dim].name if dim is not None else None
        cost = Cost()
        for one in ops:
            cost.add(self._costs[one.name])
        return LayerRow(
            name=op.name.removeprefix(prefix),
            kind=op.target.split(".")[1],
            count=len(ops),
            split=describe_split(sharding.split, self._plan, batch),
            keep=self._keeping(op),
            cost=cost,
        )

    def _keeping(self, op: Op) -> str:
        own = [self._graph.tensors[tensor] for tensor in op.inputs]
        names = [tensor.name for tensor in own if tensor.kind is TensorKind.PARAMETER]
        if not names:
            return ""
        keep: Keeping = self._plan.tied.get(names[0], self._plan.ops[op.name].keep)
        return keep.value

    def _matters(self, op: Op) -> bool:
        """Products, what has parameters, no rule, or exchanges inside, and the loss."""
        dims = {dim.name: dim for dim in op.space.dims}
        split = self._plan.ops[op.name].split
        return (
            bool(op.space.flop_terms)
            or not op.space.ruled
            or any(self._graph.tensors[tensor].kind is TensorKind.PARAMETER for tensor in op.inputs)
            or any(dims[name].kind is DimKind.COLLECTIVE for name in split if name in dims)
            or bool(set(op.outputs) & set(self._graph.outputs))
        )


def _join(rows: Sequence[LayerRow], *, anywhere: bool) -> list[LayerRow]:
    """Rows that are split alike as one: neighbours, or all of them."""
    groups: dict[object, list[LayerRow]] = {}
    for place, row in enumerate(rows):
        look = (row.kind, row.split, row.keep)
        last = next(reversed(groups), None) if groups else None
        if anywhere:
            groups.setdefault(look, []).append(row)
        elif last is not None and isinstance(last, tuple) and last[1:] == look:
            groups[last].append(row)
        else:
            groups[(place, *look)] = [row]
    return [_joined(group) for group in groups.values()]


def _joined(rows: Sequence[LayerRow]) -> LayerRow:
    cost = Cost()
    for row in rows:
        cost.add(row.cost)
    return LayerRow(
        name=_one_name([row.name for row in rows]),
        kind=rows[0].kind,
        count=sum(row.count for row in rows),
        split=rows[0].split,
        keep=rows[0].keep,
        cost=cost,
    )


def _one_name(names: Sequence[str]) -> str:
    """`attention.{query,key}/linear` where names differ in one piece only, else the first and the last."""
    if len(names) == 1:
        return names[0]
    pieces = [re.split(r"([./])", name) for name in names]
    if len({len(each) for each in pieces}) == 1 and len(names) <= 4:
        columns = list(zip(*pieces, strict=True))
        differing = [place for place, column in enumerate(columns) if len(set(column)) > 1]
        if len(differing) == 1:
            joined = [column[0] for column in columns]
            joined[differing[0]] = "{" + ",".join(columns[differing[0]]) + "}"
            return "".join(joined)
    return f"{names[0]} … {names[-1]}"
