"""Random search with Metropolis acceptance, as FlexFlow's: a check that the exact search is no worse."""

from __future__ import annotations

import numpy as np

from syncline.planning.search import Candidate, Limits, Search


def random_search(search: Search, start: Candidate, *, proposals: int = 3000, seed: int = 0) -> Candidate:
    """The best plan met by changing one random choice at a time, from a given plan.

    A change that costs d more is accepted with probability exp(−d / temperature), where the temperature falls
    from a hundredth of the start's cost to a ten-thousandth.
    """
    random = np.random.default_rng(seed)
    nodes = search.tables.nodes
    costs = search.node_costs(Limits.none())
    around = _edges_around(search)
    open_nodes = [index for index, node in enumerate(nodes) if node.count > 1]
    choice = list(start.choice)
    value = best_value = start.prediction.step_s
    best = list(choice)
    for number in range(proposals if open_nodes else 0):
        temperature = start.prediction.step_s * 10.0 ** (-2 - 2 * number / proposals)
        index = open_nodes[random.integers(len(open_nodes))]
        proposed = int(random.integers(nodes[index].count))
        change = costs[index][proposed] - costs[index][choice[index]]
        change += _edges_s(search, around[index], choice, index, proposed)
        change -= _edges_s(search, around[index], choice, index, choice[index])
        if change <= 0 or random.random() < np.exp(-change / temperature):
            choice[index] = proposed
            value += change
            if value < best_value:
                best, best_value = list(choice), value
    return search.complete(tuple(best))


def _edges_around(search: Search) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in search.tables.nodes]
    for number, edge in enumerate(search.tables.edges):
        around[edge.source].append(number)
        around[edge.target].append(number)
    return around


def _edges_s(search: Search, edges: list[int], choice: list[int], index: int, chosen: int) -> float:
    total = 0.0
    for number in edges:
        edge = search.tables.edges[number]
        source = chosen if edge.source == index else choice[edge.source]
        target = chosen if edge.target == index else choice[edge.target]
        total += float(edge.total_s[edge.rows[source], edge.cols[target]])
    return total
