"""What the planner expects of each cell, to be set beside what is measured, and the work of its step.

The strategies that run a plan (`planned`, `tensor`) tell their own prediction in the run's summary. Others
are priced here by the same cost model, on the same cluster; those that no model prices have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from syncline.benchmark.cells import Cell
from syncline.benchmark.suite import LOCAL, Suite
from syncline.cluster.presets import cluster_from
from syncline.cluster.topology import Cluster
from syncline.errors import SynclineError
from syncline.graph.cutting import Cutting
from syncline.graph.opgraph import OpGraph
from syncline.planning.planner import Request, make_plan
from syncline.planning.prediction import Prediction
from syncline.planning.staged import StagedCosts
from syncline.planning.strategy_predictions import predict_strategies
from syncline.strategies.local.choosing import Heads
from syncline.strategies.local.strategy import LocalParallel
from syncline.strategies.pipeline import Pipeline
from syncline.strategies.registry import parse_strategy
from syncline.training.schedule import default_optimizer
from syncline.workloads.load import LoadedWorkload, load_workload
from syncline.workloads.planning import capture_workload

_STATE_FACTORS = {"sgd": 1.0, "adam": 2.0, "adamw": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Of one cell; None where nothing is predicted."""

    flops_per_step: float | None = None
    step_s: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(slots=True)
class _Site:
    """What is expected of a model with one batch on one cluster."""

    flops_per_step: float | None
    by_strategy: dict[str, Prediction] = field(default_factory=dict)


class Predictions:
    """Captures each model once for each batch, and prices strategies when they are first asked for."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._graphs: dict[tuple[str, int], OpGraph | None] = {}
        self._sites: dict[tuple[str, int, str, int], _Site] = {}

    def of(self, cell: Cell) -> Predicted:
        """What is expected of a cell."""
        key = (cell.model, cell.batch, cell.cluster, cell.world_size)
        if key not in self._sites:
            self._sites[key] = self._price(cell)
        site = self._sites[key]
        one = site.by_strategy.get(_priced_name(cell))
        return Predicted(
            flops_per_step=site.flops_per_step,
            step_s=None if one is None else one.step_s,
            peak_memory_bytes=None if one is None else round(one.memory.total),
        )

    def _price(self, cell: Cell) -> _Site:
        graph = self._graph(cell)
        if graph is None:
            return _Site(None)
        site = _Site(float(graph.forward_flops + graph.backward_flops))
        text = f"1x{cell.world_size}" if cell.cluster == LOCAL else cell.cluster
        request = Request(
            model=cell.model, batch=cell.batch, state_factor=self._state_factor(cell), proposals=0
        )
        cluster = cluster_from(text)
        try:
            planned = make_plan(graph, cluster, request)
        except SynclineError:
            # A model that fits nowhere, or that no plan can be made for, is still measured.
            return site
        if cell.world_size == 1:
            site.by_strategy["single"] = planned.plan.prediction
            return site
        site.by_strategy |= predict_strategies(planned.search)
        site.by_strategy |= _staged(graph, cluster, request)
        return site

    def _graph(self, cell: Cell) -> OpGraph | None:
        key = (cell.model, cell.batch)
        if key not in self._graphs:
            try:
                self._graphs[key] = capture_workload(self._workload(cell), cell.batch)
            except SynclineError:
                # Strategies that need no graph still train it; there is nothing to predict with.
                self._graphs[key] = None
        return self._graphs[key]

    def _state_factor(self, cell: Cell) -> float:
        config = self._suite.base_config()
        settings = config.optimizer or default_optimizer(self._workload(cell).input)
        return _STATE_FACTORS[settings.name]

    def _workload(self, cell: Cell) -> LoadedWorkload:
        config = self._suite.base_config()
        return load_workload(cell.model, data=config.data, input=config.input, device="meta")


def _priced_name(cell: Cell) -> str:
    """Under which name a cell's strategy is priced."""
    strategy = parse_strategy(cell.strategy)
    if isinstance(strategy, Pipeline) and strategy.per_rank is None and strategy.cuts is None:
        depth = strategy.stages or cell.world_size
        parts = strategy.microbatches or depth
        return f"pipeline:schedule={strategy.schedule},stages={depth},microbatches={parts}"
    if isinstance(strategy, LocalParallel) and strategy == LocalParallel(stages=strategy.stages):
        return f"local:stages={strategy.stages or cell.world_size}"
    is_default = strategy == parse_strategy(strategy.name)
    return strategy.name if is_default else cell.strategy


def _staged(graph: OpGraph, cluster: Cluster, request: Request) -> dict[str, Prediction]:
    """Every pipeline, and `local` with its own heads."""
    try:
        cutting = Cutting(graph)
        heads = Heads(cutting, cutting, kind=None, cap=LocalParallel().head_cap)
        costs = StagedCosts(
            cutting,
            cluster,
            batch=request.batch,
            state_factor=request.state_factor,
            head_flops=lambda start, end: heads.plan(start, end).forward_flops,
        )
        return costs.every_way()
    except SynclineError:
        # A model that cannot be cut has no stages to price.
        return {}
