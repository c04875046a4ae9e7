"""From a captured model and a cluster to a plan, with the alternatives priced beside it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from syncline.cluster.topology import Cluster
from syncline.errors import InfeasiblePlanError
from syncline.graph.opgraph import OpGraph
from syncline.planning.axes import SearchAxes, search_axes
from syncline.planning.baselines import Shardings, data_parallel, expert, mesh_masks
from syncline.planning.calibration import Calibration
from syncline.planning.describing import describe
from syncline.planning.folding import fold
from syncline.planning.infeasible import explain_infeasible
from syncline.planning.parameter_costs import Keeping
from syncline.planning.pins import Pin, pin_labels, pin_masks, pinned_shardings
from syncline.planning.plan import Alternative, Plan, PlannedWorkload, SearchReport
from syncline.planning.random_search import random_search
from syncline.planning.search import LEAST_EXPOSED, Candidate, Limits, Search
from syncline.planning.table_builder import ADAM_STATE_FACTOR, build_tables
from syncline.planning.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to plan."""

    model: str
    batch: int
    memory_bytes: float | None = None
    """Of one device; by default what the cluster's devices have."""
    pins: tuple[Pin, ...] = ()
    state_factor: float = ADAM_STATE_FACTOR
    proposals: int = 3000
    """Of the random search that is run for comparison; 0 for none."""
    calibration: Calibration | None = None
    """What was measured in place of estimates."""
    margin: float = 0.0
    """By what share a plan must be predicted to beat plain data parallelism to be preferred to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and all that it was chosen from, for explanations."""

    plan: Plan
    search: Search
    chosen: Candidate
    alternatives: tuple[tuple[str, Candidate], ...]


def make_plan(graph: OpGraph, cluster: Cluster, request: Request) -> Planned:
    """The fastest plan that fits a device, and what else was weighed.

    Raises:
        InfeasiblePlanError: Nothing fits; names what binds and the smallest change that would.
    """
    began = time.perf_counter()
    known = known_strategies(graph, search_axes(cluster))
    tables = search_tables(graph, cluster, request)
    search = Search(tables)
    pinned = Limits(masks=pin_masks(tables, request.pins))
    search.exposed_share = exposed_share(search, known[0][1])
    limit = request.memory_bytes or cluster.device.memory_bytes
    found, smallest = search.fastest_within(limit, pinned)
    seconds = time.perf_counter() - began
    others = _alternatives(search, known, request, limit)
    fitting = [one for _, one in others if one.prediction.memory.total <= limit] if not request.pins else []
    chosen = _choose([*([found] if found else []), *fitting], dict(others).get(known[0][0]), request.margin)
    if chosen is None:
        raise InfeasiblePlanError(
            explain_infeasible(smallest, limit, model=request.model, batch=request.batch, cluster=cluster)
        )
    report = SearchReport(
        space=_power_of_ten(tables),
        seconds=seconds,
        ops=len(graph.ops),
        choices=sum(node.count for node in tables.nodes if node.op is not None),
        exposed_share=search.exposed_share,
    )
    workload = PlannedWorkload(
        model=request.model,
        batch=request.batch,
        parameters=graph.parameter_count,
        forward_flops=graph.forward_flops,
        optimizer_state_factor=request.state_factor,
    )
    plan = describe(search, chosen, workload, cluster, limit, report)
    shown = tuple(
        Alternative(
            name=name,
            exact=True,
            prediction=one.prediction,
            fits=one.prediction.memory.total <= limit,
        )
        for name, one in others
    )
    return Planned(
        plan=dataclasses.replace(plan, alternatives=shown), search=search, chosen=chosen, alternatives=others
    )


def _choose(fitting: list[Candidate], plain: Candidate | None, margin: float) -> Candidate | None:
    """The fastest of those that fit; plain data parallelism if that is one of them and nearly as fast."""
    fastest = min(fitting, key=lambda one: one.prediction.step_s, default=None)
    if fastest is None or plain is None or all(one is not plain for one in fitting):
        return fastest
    return plain if (1 - margin) * plain.prediction.step_s <= fastest.prediction.step_s else fastest


def search_tables(graph: OpGraph, cluster: Cluster, request: Request) -> Tables:
    """The tables of everything that a search weighs."""
    axes = search_axes(cluster)
    known = known_strategies(graph, axes)
    extra = {op.id: [shardings[op.id] for _, shardings in known] for op in graph.ops}
    for op, shardings in pinned_shardings(graph, axes, request.pins).items():
        extra[op] += shardings
    return build_tables(
        graph,
        axes,
        state_factor=request.state_factor,
        extra=extra,
        folding=fold(graph, apart=pin_labels(graph, request.pins)),
        calibration=request.calibration,
    )


def known_strategies(graph: OpGraph, axes: SearchAxes) -> list[tuple[str, Shardings]]:
    """Data parallelism, then what experts do with models like this."""
    return [("data parallel", data_parallel(graph, axes)), expert(graph, axes)]


def exposed_share(search: Search, shardings: Shardings) -> float:
    """The share of parameter communication that backward cannot hide: b of the objective."""
    candidate = search.solve(Limits(masks=exactly(search.tables, shardings), keepings=(Keeping.REPLICATED,)))
    if candidate is None:
        return LEAST_EXPOSED
    chosen = list(zip(search.tables.nodes, candidate.choice, strict=True))
    backward_s = sum(
        node.weight * float(node.costs.backward_s[row]) for node, row in chosen if node.costs is not None
    )
    reductions_s = sum(
        node.weight * float(node.parameters.backward_reduce_s[row, 0])
        for node, row in chosen
        if node.parameters is not None
    )
    if not reductions_s:
        return LEAST_EXPOSED
    calibration = search.tables.calibration
    efficiency = calibration.machine.overlap if calibration is not None else _overlap(search)
    hidden = efficiency * min(1.0, backward_s / reductions_s)
    return float(np.clip(1 - hidden, LEAST_EXPOSED, 1.0))


def _overlap(search: Search) -> float:
    """What the outermost links that are used let go on behind computing."""
    used = [level for level in search.tables.axes.cluster.levels if level.size > 1]
    return used[-1].overlap if used else 1.0


def _alternatives(
    search: Search, known: Sequence[tuple[str, Shardings]], request: Request, limit: float
) -> tuple[tuple[str, Candidate], ...]:
    """What people do, recomputing activations where it would not fit otherwise; and random search."""
    ways = [
        (name, Limits(masks=exactly(search.tables, shardings), keepings=(Keeping.REPLICATED,)))
        for name, shardings in known
    ]
    data = exactly(search.tables, known[0][1])
    sharded = Limits(masks=data, keepings=(Keeping.SHARDED,))
    ways.append(("data parallel, fully sharded (ZeRO-3)", sharded))
    plain = [(name, limits, search.solve(limits)) for name, limits in ways]
    found = [(name, _fitted(search, limits, one, limit)) for name, limits, one in plain if one is not None]
    mesh = _best_mesh(search, limit)
    found += [mesh] if mesh is not None else []
    starts = [one for _, _, one in plain if one is not None]
    if request.proposals and starts:
        start = min(starts, key=lambda one: one.prediction.step_s)
        found.append(("random search (MCMC)", random_search(search, start, proposals=request.proposals)))
    return tuple((f"{name}, recomputing" if one.recompute else name, one) for name, one in found)


def _fitted(search: Search, limits: Limits, plain: Candidate, limit: float) -> Candidate:
    """The same with activations recomputed, if only that fits."""
    if _fits(plain, limit) or not search.has_blocks:
        return plain
    again = search.solve(limits, recompute=True)
    return again if again is not None and _fits(again, limit) else plain


def _best_mesh(search: Search, limit: float) -> tuple[str, Candidate] | None:
    """The fastest uniform data x tensor mesh: the innermost axes for the model, the others for the batch.

    Of those that fit, if one does.
    """
    axes = search.tables.axes
    found: list[tuple[str, Candidate]] = []
    for count in range(len(axes.axes) + 1):
        model_axes = list(range(len(axes.axes) - count, len(axes.axes)))
        limits = Limits(masks=mesh_masks(search.tables, model_axes))
        one = search.fastest_within(limit, limits)[0] or search.solve(limits)
        if one is not None:
            degree = math.prod(axes.axes[axis].size for axis in model_axes)
            data = math.prod(axes.sizes) // degree
            found.append((f"best uniform mesh (data {data} x tensor {degree})", one))
    return min(found, key=lambda mesh: (not _fits(mesh[1], limit), mesh[1].prediction.step_s), default=None)


def _fits(candidate: Candidate, limit: float) -> bool:
    return candidate.prediction.memory.total <= limit


def exactly(tables: Tables, shardings: Mapping[int, tuple[int, ...]]) -> dict[int, np.ndarray]:
    """Masks that allow each op only the sharding given for it."""
    masks = {}
    for index, node in enumerate(tables.nodes):
        if node.op is not None and node.assignments is not None:
            rows = (node.assignments == np.array(shardings[node.op.id])).all(axis=1)
            masks[index] = rows if node.count > 1 else np.ones(1, dtype=bool)
    return masks


def _power_of_ten(tables: Tables) -> str:
    exponent = sum(node.weight * math.log10(node.count) for node in tables.nodes if node.op is not None)
    return f"10^{exponent:.0f}"
