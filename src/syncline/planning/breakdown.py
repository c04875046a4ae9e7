"""Where the time and memory of a choice go, op by op.

A redistribution is charged to the op that asks for it; what a tensor with several users costs before it
reaches them is charged to the op that makes it, or, for a tied parameter, to the first op that uses it.
Costs of all ops add up to those of the whole plan.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from syncline.planning.parameter_costs import KEEPINGS
from syncline.planning.search import Candidate, Search
from syncline.planning.tables import Node


@dataclass(slots=True)
class Cost:
    """Seconds of a step by cause, and bytes of a device, of some ops."""

    compute_s: float = 0.0
    recompute_s: float = 0.0
    redistribute_s: float = 0.0
    exchange_s: float = 0.0
    parameters_s: float = 0.0
    """Only what backward does not hide."""
    optimizer_s: float = 0.0
    kept_bytes: float = 0.0
    """Weights, gradients and optimizer state."""
    saved_bytes: float = 0.0

    @property
    def total_s(self) -> float:
        """All causes together."""
        return sum(getattr(self, name) for name in CAUSES)

    @property
    def communication_s(self) -> float:
        """What is spent on links."""
        return self.redistribute_s + self.exchange_s + self.parameters_s

    def add(self, other: Cost, times: float = 1.0) -> None:
        """Add another's, a number of times."""
        for field in fields(Cost):
            setattr(self, field.name, getattr(self, field.name) + times * getattr(other, field.name))


CAUSES = ("compute_s", "recompute_s", "redistribute_s", "exchange_s", "parameters_s", "optimizer_s")


def node_costs(search: Search, candidate: Candidate) -> dict[int, Cost]:
    """For each node that stands for ops, what all of them cost together."""
    tables = search.tables
    found = {index: Cost() for index, node in enumerate(tables.nodes) if node.op is not None}
    homes = _homes(search)
    for index, node in enumerate(tables.nodes):
        own = _own(node, candidate, index, search.exposed_share)
        found[homes[index]].add(own, node.weight)
    for edge in tables.edges:
        row, col = edge.rows[candidate.choice[edge.source]], edge.cols[candidate.choice[edge.target]]
        again = candidate.recompute and edge.inside_block
        seconds = edge.total_s[row, col] + (edge.forward_s[row, col] if again else 0.0)
        target = edge.target if edge.target in found else homes[edge.source]
        found[target].redistribute_s += float(seconds)
    return found


def op_costs(search: Search, candidate: Candidate) -> dict[str, Cost]:
    """For each op of the graph, by name, its share."""
    tables, by_node = search.tables, node_costs(search, candidate)
    shares: dict[str, Cost] = {}
    for op in tables.graph.ops:
        node = tables.node_of[op.id]
        shares[op.name] = Cost()
        shares[op.name].add(by_node[node], 1 / tables.nodes[node].weight)
    return shares


def _homes(search: Search) -> dict[int, int]:
    """For each node the one, of an op, that its costs are charged to."""
    tables = search.tables
    homes = {index: index for index, node in enumerate(tables.nodes) if node.op is not None}
    for index, node in enumerate(tables.nodes):
        if index not in homes and node.tensor is not None:
            producer = tables.graph.producers[node.tensor.id]
            owner = producer if producer is not None else tables.graph.consumers[node.tensor.id][0]
            homes[index] = tables.node_of[owner]
    return homes


def _own(node: Node, candidate: Candidate, index: int, share: float) -> Cost:
    chosen, kept = candidate.choice[index], KEEPINGS.index(candidate.keeping[index])
    cost = Cost()
    again = candidate.recompute and node.block is not None
    if node.costs is not None:
        own = node.costs
        cost.compute_s = float(own.forward_s[chosen] + own.backward_s[chosen])
        cost.exchange_s = float(own.forward_exchange_s[chosen] + own.backward_exchange_s[chosen])
        if again:
            cost.recompute_s = float(own.forward_s[chosen] + own.forward_exchange_s[chosen])
    saved = node.entering_bytes if again else node.saved_bytes
    cost.saved_bytes = float(saved[chosen]) if saved is not None else 0.0
    if node.parameters is not None:
        own = node.parameters
        sent = own.forward_gather_s[chosen, kept] + own.backward_reduce_s[chosen, kept]
        cost.parameters_s = float(share * sent + own.waited_s[chosen, kept])
        cost.optimizer_s = float(own.optimizer_s[chosen, kept])
        held = own.weight_bytes[chosen, kept] + own.gradient_bytes[chosen, kept]
        cost.kept_bytes = float(held + own.state_bytes[chosen, kept])
    return cost
