"""A problem whose configurations are being crossed out, and the values of its choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from syncline.planning.elimination.layouts import Floats, Ints, Table, restrict
from syncline.planning.elimination.problem import Edge, Structure


class Instance:
    """A structure with node costs, and the configurations that can still be in a best choice.

    Indices of configurations count the remaining ones; ``kept[v]`` says which of the original
    configurations of v they are.
    """

    def __init__(self, structure: Structure, node_costs: Sequence[Floats]) -> None:
        self.costs: list[Floats] = list(node_costs)
        self.kept: list[Ints | None] = [None] * len(node_costs)
        self.ends = [(edge.u, edge.v) for edge in structure.edges]
        self.tables: list[Table] = [edge.table for edge in structure.edges]
        self.incoming: list[list[int]] = [[] for _ in node_costs]
        self.outgoing: list[list[int]] = [[] for _ in node_costs]
        self._restricted: dict[tuple[int, int, bytes], tuple[Table, Table]] = {}
        for index, (u, v) in enumerate(self.ends):
            self.outgoing[u].append(index)
            self.incoming[v].append(index)

    def restrict(self, node: int, remaining: Ints) -> None:
        """Crosses out all configurations of the node but the ``remaining`` ones."""
        before = self.kept[node]
        self.kept[node] = remaining if before is None else before[remaining]
        self.costs[node] = self.costs[node][remaining]
        content = remaining.tobytes()
        for edge in self.outgoing[node]:
            self._restrict_table(edge, 0, remaining, content)
        for edge in self.incoming[node]:
            self._restrict_table(edge, 1, remaining, content)

    def _restrict_table(self, edge: int, axis: int, remaining: Ints, content: bytes) -> None:
        before = self.tables[edge]
        key = (id(before), axis, content)
        if key not in self._restricted:  # edges with equal tables go on sharing one
            self._restricted[key] = (before, restrict(before, axis, remaining))
        self.tables[edge] = self._restricted[key][1]

    def forbid_infinite(self) -> bool:
        """Crosses out configurations whose own cost is infinite; False if a node has no other."""
        for node, costs in enumerate(self.costs):
            if costs.max() < np.inf:
                continue
            remaining = np.flatnonzero(costs < np.inf)
            if not remaining.size:
                return False
            self.restrict(node, remaining)
        return True

    def sizes(self) -> list[int]:
        """How many configurations each node has left."""
        return [len(costs) for costs in self.costs]

    def neighbours(self) -> list[set[int]]:
        """The neighbours of each node."""
        return [
            {self.ends[edge][0] for edge in before} | {self.ends[edge][1] for edge in after}
            for before, after in zip(self.incoming, self.outgoing, strict=True)
        ]

    def undecided(self) -> tuple[Instance, list[int]]:
        """The nodes with several configurations left, as an instance of their own.

        What a decided neighbour makes a node pay becomes part of the node's cost.
        """
        nodes = [node for node, costs in enumerate(self.costs) if len(costs) > 1]
        number = {node: at for at, node in enumerate(nodes)}
        costs = [self.costs[node] for node in nodes]
        edges = []
        for (u, v), table in zip(self.ends, self.tables, strict=True):
            if u in number and v in number:
                edges.append(Edge(number[u], number[v], table))
            elif u in number:
                costs[number[u]] = costs[number[u]] + table.col(0)
            elif v in number:
                costs[number[v]] = costs[number[v]] + table.row(0)
        sizes = tuple(map(len, costs))
        return Instance(Structure(sizes, tuple(edges), tuple(range(len(nodes)))), costs), nodes

    def originals(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice in the numbering of the original configurations."""
        pairs = zip(choice, self.kept, strict=True)
        return tuple(int(chosen if kept is None else kept[chosen]) for chosen, kept in pairs)

    def remaining(self, originals: Sequence[int]) -> list[int] | None:
        """A choice of original configurations, numbered as what remains; None if one is crossed out."""
        chosen = []
        for configuration, kept in zip(originals, self.kept, strict=True):
            at = configuration if kept is None else int(np.searchsorted(kept, configuration))
            if kept is not None and (at == len(kept) or kept[at] != configuration):
                return None
            chosen.append(at)
        return chosen

    def terms(self, choice: Sequence[int]) -> list[float]:
        """The node and edge costs that the choice adds up."""
        found = [float(costs[chosen]) for costs, chosen in zip(self.costs, choice, strict=True)]
        for (u, v), table in zip(self.ends, self.tables, strict=True):
            i = choice[u] if table.rows is None else table.rows.labels[choice[u]]
            j = choice[v] if table.cols is None else table.cols.labels[choice[v]]
            found.append(float(table.matrix[i, j]))
        return found
