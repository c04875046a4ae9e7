"""The tables that the search adds up: what each choice costs, and each pair of choices.

The variables of the search:

- every op, with its shardings;
- every activation with several consumers (a *fork*), with the layouts that these ask for: so that it is
  redistributed, and its gradient reduced, once and not for each consumer;
- every parameter with several consumers (tied weights), likewise.

Tables are by distinct layout, and shared between all edges and ops that look alike: a model of 80 equal
layers has the tables of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from syncline.graph.opgraph import Op, OpGraph, Tensor
from syncline.planning.axes import SearchAxes
from syncline.planning.calibration import Calibration
from syncline.planning.choices import Assignments
from syncline.planning.folding import Folding
from syncline.planning.op_costs import OpCosts
from syncline.planning.parameter_costs import ParameterCosts
from syncline.planning.states import States

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Node:
    """A variable of the search."""

    count: int
    """How many choices it has."""
    op: Op | None = None
    tensor: Tensor | None = None
    """Of a fork or a tied parameter."""
    assignments: Assignments | None = None
    states: States | None = None
    costs: OpCosts | None = None
    parameters: ParameterCosts | None = None
    saved_bytes: Floats | None = None
    """Kept for backward."""
    entering_bytes: Floats | None = None
    """The part of them that recomputing the block needs all the same."""
    output_bytes: Floats | None = None
    """Of the largest tensor that the op makes."""
    block: str | None = None
    weight: int = 1
    """How many ops, or tensors, of the model it stands for."""


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from one variable to another; matrices are by layout."""

    source: int
    target: int
    tensor: int
    forward_s: Floats
    total_s: Floats
    """Forward and backward; edges that look alike share the very arrays. For all that the edge stands for."""
    rows: Ints
    """For each choice of the source, its row."""
    cols: Ints
    inside_block: bool


@dataclass
class Tables:
    """All variables and edges of one search."""

    graph: OpGraph
    axes: SearchAxes
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    node_of: dict[int, int] = field(default_factory=dict)
    """For each op of the graph, by id, the node that decides for it."""
    folding: Folding | None = None
    """Which ops are decided together."""
    calibration: Calibration | None = None
    """What was measured in place of estimates."""

    @property
    def space_size(self) -> int:
        """How many plans there are."""
        size = 1
        for node in self.nodes:
            if node.op is not None:
                size *= node.count
        return size
