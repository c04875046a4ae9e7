"""Pricing a plan that exists already: one from a file, maybe edited by hand, or on another cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from syncline.cluster.mesh import MeshAxis
from syncline.cluster.topology import Cluster
from syncline.errors import PlanningError
from syncline.graph.opgraph import Op, OpGraph
from syncline.planning.axes import SearchAxes
from syncline.planning.baselines import data_parallel
from syncline.planning.calibration import Calibration
from syncline.planning.choices import UNUSED
from syncline.planning.folding import Folding, fold, keep_all
from syncline.planning.parameter_costs import KEEPINGS, Keeping
from syncline.planning.plan import Plan
from syncline.planning.plan_check import check_plan
from syncline.planning.planner import exposed_share
from syncline.planning.prediction import Prediction
from syncline.planning.search import Search
from syncline.planning.table_builder import build_tables
from syncline.planning.tables import Node

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a plan costs by the cost model of today, beside what it says itself."""

    prediction: Prediction
    claimed: Prediction
    fits: bool

    @property
    def step_ratio(self) -> float:
        """The step time over the claimed one."""
        return self.prediction.step_s / self.claimed.step_s if self.claimed.step_s else math.inf

    @property
    def memory_ratio(self) -> float:
        """The memory over the claimed one."""
        claimed = self.claimed.memory.total
        return self.prediction.memory.total / claimed if claimed else math.inf

    @property
    def agrees(self) -> bool:
        """Whether both are the same but for rounding."""
        return math.isclose(self.step_ratio, 1, rel_tol=1e-6) and math.isclose(
            self.memory_ratio, 1, rel_tol=1e-6
        )

    @property
    def difference(self) -> str:
        """How they differ, in a line."""
        if self.agrees:
            return "The plan costs what it says."
        return (
            f"The step takes {self.prediction.step_s * 1e3:.4g} ms where the plan says "
            f"{self.claimed.step_s * 1e3:.4g} ms ({_percent(self.step_ratio)}), and a device needs "
            f"{self.prediction.memory.total / 1e9:.4g} GB where the plan says "
            f"{self.claimed.memory.total / 1e9:.4g} GB ({_percent(self.memory_ratio)})."
        )


def evaluate_plan(
    plan: Plan, graph: OpGraph, cluster: Cluster, calibration: Calibration | None = None
) -> Evaluation:
    """Price a plan as it stands, on a cluster's figures or, with a calibration, on measured ops.

    Raises:
        PlanningError: The plan is not one for this graph and this cluster.
    """
    check_plan(plan, graph)
    axes = plan_axes(plan, cluster)
    shardings = {op.id: _assignment(op, plan, axes) for op in graph.ops}
    data = data_parallel(graph, axes)
    tables = build_tables(
        graph,
        axes,
        state_factor=plan.workload.optimizer_state_factor,
        extra={op.id: [data[op.id], shardings[op.id]] for op in graph.ops},
        folding=_folding(plan, graph),
        calibration=calibration,
    )
    search = Search(tables)
    search.exposed_share = exposed_share(search, data)
    keeping = [_kept(node, plan) for node in tables.nodes]
    choice = [row_of(node, shardings) for node in tables.nodes]
    for index, node in enumerate(tables.nodes):
        if node.op is None:
            choice[index] = best_layout(search, index, keeping[index], choice)
    prediction = search.predict(tuple(choice), tuple(keeping), recompute=plan.recompute)
    fits = prediction.memory.total <= plan.memory_limit_bytes
    return Evaluation(prediction=prediction, claimed=plan.prediction, fits=fits)


def plan_axes(plan: Plan, cluster: Cluster) -> SearchAxes:
    """The axes of a plan on a cluster.

    Raises:
        PlanningError: The cluster has other levels, or other sizes of them.
    """
    levels = [level.name for level in cluster.levels]
    for axis in plan.axes:
        if axis.level not in levels:
            raise PlanningError(
                f"The axis '{axis.name}' lies in the level '{axis.level}', which {cluster.name} lacks. "
                f"Its levels: {', '.join(levels) or 'none'}."
            )
    for level in cluster.levels:
        size = math.prod(axis.size for axis in plan.axes if axis.level == level.name)
        if size != level.size:
            raise PlanningError(
                f"The plan's axes make {size} units of the level '{level.name}', and {cluster.name} has "
                f"{level.size}. Plan for this cluster: syncline plan MODEL --cluster {cluster.name}"
            )
    return SearchAxes(
        cluster,
        tuple(MeshAxis(name=axis.name, level=levels.index(axis.level), size=axis.size) for axis in plan.axes),
    )


def _folding(plan: Plan, graph: OpGraph) -> Folding:
    """Equal blocks are decided together, unless the plan treats them differently."""
    folding = fold(graph)
    names = [op.name for op in graph.ops]
    alike = all(
        plan.ops[name] == plan.ops[names[other]]
        for name, other in zip(names, folding.stands_for, strict=True)
    )
    return folding if alike else keep_all(graph)


def _assignment(op: Op, plan: Plan, axes: SearchAxes) -> tuple[int, ...]:
    dims = {axis: op.space.index(dim) for dim, names in plan.ops[op.name].split.items() for axis in names}
    return tuple(dims.get(axis.name, UNUSED) for axis in axes.axes)


def _kept(node: Node, plan: Plan) -> Keeping:
    if node.op is not None:
        return plan.ops[node.op.name].keep
    name = node.tensor.name if node.tensor is not None else ""
    return plan.tied.get(name, Keeping.REPLICATED)


def row_of(node: Node, shardings: Mapping[int, tuple[int, ...]]) -> int:
    """Which of a node's choices these shardings are; 0 for what is no op."""
    if node.op is None or node.assignments is None:
        return 0
    rows = (node.assignments == np.array(shardings[node.op.id])).all(axis=1)
    if not rows.any():
        raise PlanningError(f"{node.op.name} cannot be split as the plan says.")
    return int(rows.argmax())


def best_layout(search: Search, fork: int, kept: Keeping, choice: Sequence[int]) -> int:
    """The layout in which a tensor with several users lies best, all ops being decided."""
    node = search.tables.nodes[fork]
    total = _parameter_s(node, search.exposed_share, KEEPINGS.index(kept))
    for edge in search.tables.edges:
        if edge.target == fork:
            total = total + edge.total_s[edge.rows[choice[edge.source]], edge.cols]
        elif edge.source == fork:
            total = total + edge.total_s[edge.rows, edge.cols[choice[edge.target]]]
    return int(total.argmin())


def _parameter_s(node: Node, share: float, kept: int) -> Floats:
    own = node.parameters
    if own is None:
        return np.zeros(node.count)
    sent_s = share * (own.forward_gather_s + own.backward_reduce_s) + own.waited_s
    return (sent_s + own.optimizer_s)[:, kept]


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.3g} %"
