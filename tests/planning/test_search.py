"""The search over the cost model: against brute force, and what must hold whatever the model and cluster."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from plan_samples import builtin_graph, plausible_cluster, search_of, stack_of_linears
from syncline.graph import OpGraph, capture
from syncline.planning.folding import fold, keep_all
from syncline.planning.parameter_costs import KEEPINGS, Keeping
from syncline.planning.search import Candidate, Limits, Search
from syncline.planning.tables import Tables

TINY = {"mlp": 32, "gpt2-tiny": 8, "transformer:size=tiny": 8}


def tiny(name: str) -> OpGraph:
    return stack_of_linears((64, 128, 32), 32) if name == "linears" else builtin_graph(name, TINY[name])


# Brute force


def every_plan(search: Search) -> np.ndarray:
    """F of every plan, one axis a node, with the best way to keep parameters."""
    nodes, share = search.tables.nodes, search.exposed_share
    total = np.zeros([node.count for node in nodes])
    for index, node in enumerate(nodes):
        own = np.zeros(node.count)
        if node.costs is not None:
            own += node.costs.forward_s + node.costs.backward_s
            own += node.costs.forward_exchange_s + node.costs.backward_exchange_s
        if node.parameters is not None:
            kept = node.parameters
            sent = kept.forward_gather_s + kept.backward_reduce_s
            own += (share * sent + kept.waited_s + kept.optimizer_s).min(axis=1)
        total += _along(node.weight * own, (index,), len(nodes))
    for edge in search.tables.edges:
        matrix = edge.total_s[np.ix_(edge.rows, edge.cols)]
        total += _along(matrix, (edge.source, edge.target), len(nodes))
    return total


def _along(values: np.ndarray, places: tuple[int, ...], count: int) -> np.ndarray:
    if len(places) == 2 and places[0] > places[1]:
        values, places = values.T, places[::-1]
    shape = [1] * count
    for place, size in zip(places, values.shape, strict=True):
        shape[place] = size
    return values.reshape(shape)


@pytest.mark.parametrize("widths", [(16, 32, 8), (64, 16, 64), (8, 8, 8, 8)])
def test_the_search_equals_brute_force(widths):
    search = search_of(stack_of_linears(widths, 16), plausible_cluster(2, 2))
    total = every_plan(search)
    found = search.solve(Limits.none())
    assert found is not None
    assert found.objective == pytest.approx(total.min(), rel=1e-9)
    assert total[found.choice] == pytest.approx(total.min(), rel=1e-9)


def test_every_plan_is_predicted_as_the_search_adds_it_up():
    search = search_of(stack_of_linears((16, 32, 8), 16), plausible_cluster(2, 2))
    total = every_plan(search)
    chance = random.Random(0)
    for _ in range(100):
        choice = tuple(chance.randrange(node.count) for node in search.tables.nodes)
        assert search.complete(choice).prediction.step_s == pytest.approx(total[choice], rel=1e-9)


def test_no_plan_that_fits_is_faster_than_what_is_found_by_more_than_a_little():
    """Prices find the lower hull of time over memory: exact where memory does not bind, close elsewhere."""
    search = search_of(stack_of_linears((64, 128, 8), 16), plausible_cluster(1, 4))
    nodes = search.tables.nodes
    plans: list[tuple[float, float]] = []
    for choice in itertools.product(*(range(node.count) for node in nodes)):
        owners = [index for index, node in enumerate(nodes) if node.parameters is not None]
        for kept in itertools.product(KEEPINGS[:3], repeat=len(owners)):
            keeping = [Keeping.REPLICATED] * len(nodes)
            for index, keep in zip(owners, kept, strict=True):
                keeping[index] = keep
            if len(plans) < 40_000:
                prediction = search.predict(choice, tuple(keeping), recompute=False)
                plans.append((prediction.memory.total, prediction.step_s))
    sizes = sorted({size for size, _ in plans})
    for limit in sizes[:: max(1, len(sizes) // 12)]:
        found, _ = search.fastest_within(limit, Limits.none())
        if found is not None:
            assert found.prediction.memory.total <= limit
            best = min(step_s for size, step_s in plans if size <= limit)
            assert found.prediction.step_s <= best * 1.15


# What must hold


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["linears", *TINY])
def test_a_plan_re_evaluates_to_the_value_claimed(name, recompute):
    search = search_of(tiny(name), plausible_cluster())
    found = search.solve(Limits.none(), recompute=recompute)
    assert found is not None
    assert found.prediction.step_s == pytest.approx(found.objective, rel=1e-9)


@pytest.mark.parametrize("name", ["linears", *TINY])
def test_with_memory_priced_it_re_evaluates_too(name):
    search = search_of(tiny(name), plausible_cluster())
    price = 1e-10
    found = search.solve(Limits.none(), price=price)
    assert found is not None
    memory = found.prediction.memory
    priced = memory.total - memory.gather_buffers
    assert found.prediction.step_s + price * priced == pytest.approx(found.objective, rel=1e-9)


@pytest.mark.parametrize("name", ["linears", *TINY])
def test_a_tighter_limit_never_gives_a_faster_plan(name):
    search = search_of(tiny(name), plausible_cluster())
    free, _ = search.fastest_within(np.inf, Limits.none())
    assert free is not None
    needed, before = free.prediction.memory.total, 0.0
    fitted = 0
    for share in np.linspace(1.05, 0.3, 8):
        found, smallest = search.fastest_within(needed * share, Limits.none())
        assert smallest is not None
        if found is None:
            before = np.inf
            continue
        assert found.prediction.memory.total <= needed * share
        assert found.prediction.step_s >= before * (1 - 1e-12)
        before, fitted = found.prediction.step_s, fitted + 1
    assert fitted > (2 if name == "gpt2-tiny" else 0)


@pytest.mark.parametrize("level", ["node", "network"])
@pytest.mark.parametrize("name", ["linears", *TINY])
def test_a_faster_link_never_gives_a_slower_plan(name, level):
    before = np.inf
    for speed in (0.1, 0.5, 1, 3, 20, 500):
        inside, between = (speed, 1.0) if level == "node" else (1.0, speed)
        cluster = plausible_cluster(node_speed=inside, network_speed=between)
        found, _ = search_of(tiny(name), cluster).fastest_within(np.inf, Limits.none())
        assert found is not None
        assert found.prediction.step_s <= before * (1 + 1e-9)
        before = found.prediction.step_s


def test_masks_only_slow_down():
    search = search_of(tiny("gpt2-tiny"), plausible_cluster())
    free = search.solve(Limits.none())
    assert free is not None
    busiest = max(range(len(search.tables.nodes)), key=lambda index: search.tables.nodes[index].count)
    mask = np.ones(search.tables.nodes[busiest].count, dtype=bool)
    mask[free.choice[busiest]] = False
    held = search.solve(Limits(masks={busiest: mask}))
    assert held is not None
    assert held.choice[busiest] != free.choice[busiest]
    assert held.objective >= free.objective
    assert held.objective == pytest.approx(np.sort(search.marginals(busiest))[1], rel=1e-9)


def test_nothing_allowed_gives_nothing():
    search = search_of(tiny("linears"), plausible_cluster())
    none = np.zeros(search.tables.nodes[0].count, dtype=bool)
    assert search.solve(Limits(masks={0: none})) is None
    assert search.fastest_within(np.inf, Limits(masks={0: none})) == (None, None)


# Folding


class Stack(nn.Module):
    """Residual blocks over a wide stream."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(depth))
        self.head = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def stack(depth: int) -> OpGraph:
    with torch.device("meta"):
        inputs = (torch.empty(16, 64), torch.empty(16, dtype=torch.long))
        return capture(Stack(depth), inputs, loss=F.cross_entropy)


def folding_graph(name: str) -> OpGraph:
    return stack(6) if name == "stack" else builtin_graph(name, TINY[name])


def spread(folded: Tables, unfolded: Tables, choice: tuple[int, ...]) -> dict[int, np.ndarray]:
    """The choice for every op, as masks of the tables without folding."""
    masks = {}
    for op in unfolded.graph.ops:
        ours, theirs = folded.node_of[op.id], unfolded.node_of[op.id]
        rows, others = folded.nodes[ours].assignments, unfolded.nodes[theirs].assignments
        assert rows is not None
        assert others is not None
        masks[theirs] = (others == rows[choice[ours]]).all(axis=1)
        assert masks[theirs].any(), op.name
    return masks


def bytes_of(found: Candidate) -> float:
    return found.prediction.memory.total


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("price", [0.0, 1e-9])
@pytest.mark.parametrize("name", ["stack", "mlp", "gpt2-tiny"])
def test_a_folded_plan_costs_the_same_unfolded(name, price, recompute):
    graph, cluster = folding_graph(name), plausible_cluster()
    folded, unfolded = search_of(graph, cluster), search_of(graph, cluster, keep_all(graph))
    assert unfolded.exposed_share == pytest.approx(folded.exposed_share, rel=1e-9)
    found = folded.solve(Limits.none(), price=price, recompute=recompute)
    assert found is not None
    masks = spread(folded.tables, unfolded.tables, found.choice)
    again = unfolded.solve(Limits(masks=masks), price=price, recompute=recompute)
    assert again is not None
    assert again.prediction.step_s == pytest.approx(found.prediction.step_s, rel=1e-9)
    assert bytes_of(again) == pytest.approx(bytes_of(found), rel=1e-9)


@pytest.mark.parametrize("name", ["stack", "mlp", "gpt2-tiny"])
def test_folding_hardly_ever_misses_the_optimum(name):
    graph, cluster = folding_graph(name), plausible_cluster()
    folded = search_of(graph, cluster).solve(Limits.none())
    unfolded = search_of(graph, cluster, keep_all(graph)).solve(Limits.none())
    assert folded is not None
    assert unfolded is not None
    assert unfolded.objective <= folded.objective * (1 + 1e-9)
    assert folded.objective <= unfolded.objective * 1.02


def test_folding_keeps_the_first_the_last_and_one_block_between():
    """Of those that are alike: the very first block takes the input, which needs no gradient."""
    graph = stack(6)
    folding = fold(graph)
    assert len(folding.weights) < len(keep_all(graph).weights) == len(graph.ops)
    assert sum(folding.weights.values()) == len(graph.ops)
    ups = [op for op in graph.ops if op.name.endswith("up/linear")]
    assert [folding.stands_for[op.id] for op in ups] == [ups[i].id for i in (0, 1, 2, 2, 2, 5)]


def test_blocks_with_other_labels_are_decided_apart():
    graph = stack(6)
    ups = [op for op in graph.ops if op.name.endswith("up/linear")]
    folding = fold(graph, apart={ups[3].id: "pinned"})
    assert [folding.stands_for[op.id] for op in ups] == [ups[i].id for i in (0, 1, 2, 3, 2, 5)]
