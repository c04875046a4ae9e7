"""Which rows of a global batch a rank is given, so that it need not load what it does not use."""

from __future__ import annotations

from syncline.planning.states import WHOLE
from syncline.strategies.planned.layout import Layout, axes_in
from syncline.strategies.planned.layouts import GraphLayouts


def row_axes(layouts: GraphLayouts) -> tuple[int, ...]:
    """The axes over which every op that takes a tensor of the batch wants its rows cut, outermost first."""
    common: tuple[int, ...] | None = None
    for tensor in layouts.graph.inputs:
        for wanted in layouts.wanted(tensor):
            cutting = axes_in(wanted, 0)
            common = cutting if common is None else _common_start(common, cutting)
    return common or ()


def row_layout(axes: tuple[int, ...], count: int) -> Layout:
    """The layout of a batch whose rows are cut over these axes."""
    return tuple(0 if axis in axes else WHOLE for axis in range(count))


def _common_start(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return one[:length]
