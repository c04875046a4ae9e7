"""The plan and its alternatives, priced again where something is different: the cluster, or the batch.

Only the shardings that they use are tabulated, so that this is fast enough to be done many times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import Op, OpGraph
from syncline.planning.axes import SearchAxes
from syncline.planning.choices import UNUSED, input_states
from syncline.planning.evaluation import best_layout, row_of
from syncline.planning.parameter_costs import Keeping
from syncline.planning.planner import Planned, exposed_share
from syncline.planning.prediction import Prediction
from syncline.planning.search import Candidate, Search
from syncline.planning.states import States
from syncline.planning.table_builder import build_tables

Shardings = dict[int, tuple[int, ...]]


class Repricer:
    """Prices the plan (first) and the alternatives of one search."""

    def __init__(self, planned: Planned) -> None:
        self._tables = planned.search.tables
        self._state_factor = planned.plan.workload.optimizer_state_factor
        self._candidates = [planned.chosen, *(one for _, one in planned.alternatives)]
        self._shardings = [self._read(one) for one in self._candidates]
        self._known: dict[tuple[Cluster, int], list[Prediction | None]] = {}
        self._possible: dict[int, list[bool]] = {}
        self._witnesses = self._find_witnesses()

    @property
    def cluster(self) -> Cluster:
        """The cluster that was planned for."""
        return self._tables.axes.cluster

    def predict(self, cluster: Cluster, graph: OpGraph | None = None) -> list[Prediction | None]:
        """On another cluster of the same shape, or for the same model at another batch.

        None for what cannot be split so there.
        """
        graph = graph or self._tables.graph
        key = (cluster, id(graph))
        if key not in self._known:
            self._known[key] = self._predict(cluster, graph)
        return self._known[key]

    def steps_s(self, cluster: Cluster, graph: OpGraph | None = None) -> list[float]:
        """The step times of `predict`; infinite for what is not possible."""
        return [one.step_s if one is not None else math.inf for one in self.predict(cluster, graph)]

    def _predict(self, cluster: Cluster, graph: OpGraph) -> list[Prediction | None]:
        axes = SearchAxes(cluster, self._tables.axes.axes)
        if id(graph) not in self._possible:
            self._possible[id(graph)] = [self._divides(graph, one) for one in self._shardings]
        possible = self._possible[id(graph)]
        usable = [one for one, fine in zip(self._shardings, possible, strict=True) if fine]
        whole = (UNUSED,) * len(axes.axes)
        tables = build_tables(
            graph,
            axes,
            state_factor=self._state_factor,
            extra={
                op.id: [
                    whole,
                    *(shardings[op.id] for shardings in usable),
                    *(one for one in self._witnesses.get(op.id, ()) if self._cuts_evenly(op, one)),
                ]
                for op in graph.ops
            },
            folding=self._tables.folding,
            exhaustive=False,
            calibration=self._tables.calibration,
        )
        search = Search(tables)
        # The first of the alternatives is data parallelism.
        search.exposed_share = exposed_share(search, self._shardings[min(1, len(self._shardings) - 1)])
        return [
            self._price(search, candidate, shardings) if fine else None
            for candidate, shardings, fine in zip(self._candidates, self._shardings, possible, strict=True)
        ]

    def _price(self, search: Search, candidate: Candidate, shardings: Shardings) -> Prediction:
        tied = {
            node.tensor.id: candidate.keeping[index]
            for index, node in enumerate(self._tables.nodes)
            if node.tensor is not None
        }
        keeping: list[Keeping] = []
        for index, node in enumerate(search.tables.nodes):
            of_tensor = tied.get(node.tensor.id) if node.tensor is not None else candidate.keeping[index]
            keeping.append(of_tensor or Keeping.REPLICATED)
        choice = [row_of(node, shardings) for node in search.tables.nodes]
        for index, node in enumerate(search.tables.nodes):
            if node.op is None:
                choice[index] = best_layout(search, index, keeping[index], choice)
        return search.predict(tuple(choice), tuple(keeping), recompute=candidate.recompute)

    def _read(self, candidate: Candidate) -> Shardings:
        shardings: Shardings = {}
        for op in self._tables.graph.ops:
            index = self._tables.node_of[op.id]
            rows = self._tables.nodes[index].assignments
            if rows is None:
                raise TypeError(f"{op.name} has no shardings")
            shardings[op.id] = tuple(int(dim) for dim in rows[candidate.choice[index]])
        return shardings

    def _find_witnesses(self) -> dict[int, list[tuple[int, ...]]]:
        """Shardings of ops that ask for the layouts in which tensors with several users lie.

        Layouts are tabulated only where some sharding asks for them, and it need not be one that is used.
        """
        found: dict[int, list[tuple[int, ...]]] = {}
        for index, node in enumerate(self._tables.nodes):
            if node.tensor is None or node.states is None:
                continue
            for layout in {one.choice[index] for one in self._candidates}:
                for user, row in self._asking(node.tensor.id, node.states[layout]):
                    found.setdefault(user, []).append(row)
        return found

    def _asking(self, tensor: int, layout: States) -> Iterator[tuple[int, tuple[int, ...]]]:
        """For each user of a tensor a sharding, if it has any, that asks for a layout of it."""
        for user in self._tables.graph.consumers[tensor]:
            node = self._tables.nodes[self._tables.node_of[user]]
            if node.op is None or node.assignments is None:
                continue
            place = self._tables.graph.ops[user].inputs.index(tensor)
            states = input_states(node.op.space, node.assignments, place)
            hits = np.flatnonzero((states == layout).all(axis=1))
            if len(hits):
                yield node.op.id, tuple(int(dim) for dim in node.assignments[hits[0]])

    def _divides(self, graph: OpGraph, shardings: Shardings) -> bool:
        return all(self._cuts_evenly(op, shardings[op.id]) for op in graph.ops)

    def _cuts_evenly(self, op: Op, sharding: tuple[int, ...]) -> bool:
        parts: dict[int, int] = {}
        for dim, size in zip(sharding, self._tables.axes.sizes, strict=True):
            if dim != UNUSED:
                parts[dim] = parts.get(dim, 1) * size
        return all(op.space.sizes[dim] % count == 0 for dim, count in parts.items())


def with_bandwidth(cluster: Cluster, level: str, factor: float) -> Cluster:
    """The cluster with the links of one level so many times as fast."""
    levels = tuple(
        dataclasses.replace(one, bytes_per_s=one.bytes_per_s * factor) if one.name == level else one
        for one in cluster.levels
    )
    return dataclasses.replace(cluster, levels=levels)


def with_latency(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with the latencies of all levels so many times as long."""
    levels = tuple(dataclasses.replace(one, latency_s=one.latency_s * factor) for one in cluster.levels)
    return dataclasses.replace(cluster, levels=levels)
