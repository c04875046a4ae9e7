"""The parts of the exact search: each does what its formula says."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.planning.elimination import solve
from syncline.planning.elimination.bounds import Ascent
from syncline.planning.elimination.dominance import undominated
from syncline.planning.elimination.instance import Instance
from syncline.planning.elimination.layouts import Classes, Table, collapse, join, restrict
from syncline.planning.elimination.ordering import RULES, follow, greedy
from syncline.planning.elimination.problem import build
from syncline.planning.elimination.repetition import blockwise
from syncline.planning.elimination.tabulation import blocks

seeds = st.integers(0, 2**32 - 1)


def random_problem(rng, pairs, nodes, configurations=5):
    node_costs = [rng.normal(size=configurations) for _ in range(nodes)]
    return node_costs, {pair: rng.normal(size=(configurations, configurations)) for pair in pairs}


def ascent_of(node_costs, edge_costs):
    structure = build([len(costs) for costs in node_costs], edge_costs)
    instance = Instance(structure, node_costs)
    return Ascent(instance, structure.sweep), instance


@settings(max_examples=50, deadline=None, database=None)
@given(seeds)
def test_bounds_enclose_the_optimum_and_only_tighten(seed):
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in itertools.permutations(range(7), 2) if rng.random() < 0.2]
    node_costs, edge_costs = random_problem(rng, pairs, 7)
    solution = solve(node_costs, edge_costs, prune="never")
    ascent, instance = ascent_of(node_costs, edge_costs)
    lower, upper = ascent.lower, ascent.upper
    for _ in range(6):
        ascent.run_pass()
        assert lower - 1e-9 <= ascent.lower <= solution.value + 1e-9
        assert solution.value - 1e-9 <= ascent.upper <= upper
        lower, upper = ascent.lower, ascent.upper
    assert instance.remaining(solution.choice) is not None


def test_on_a_tree_the_bounds_meet():
    rng = np.random.default_rng(0)
    node_costs, edge_costs = random_problem(rng, [((at - 1) // 2, at) for at in range(1, 31)], 31)
    ascent, instance = ascent_of(node_costs, edge_costs)
    for _ in range(30):
        ascent.run_pass()
    assert ascent.lower == pytest.approx(ascent.upper, rel=1e-9)
    assert instance.sizes() == [1] * 31


@settings(max_examples=50, deadline=None, database=None)
@given(seeds)
def test_a_dominator_replaces_what_it_dominates_at_no_cost(seed):
    rng = np.random.default_rng(seed)
    costs = rng.integers(4, size=6).astype(float)
    tables = [Table(rng.integers(3, size=(6, 3)).astype(float), None, None) for _ in range(2)]
    remaining = undominated(costs, tables)
    assert len(remaining)
    for a in set(range(6)) - set(remaining.tolist()):
        excess = [
            costs[b] - costs[a] + sum((table.matrix[b] - table.matrix[a]).max() for table in tables)
            for b in remaining
        ]
        assert min(excess) <= 0


@pytest.mark.parametrize("rule", RULES)
def test_orders_of_simple_graphs_have_their_width(rule):
    path = [{1}, {0, 2}, {1, 3}, {2}]
    ring = [{3, 1}, {0, 2}, {1, 3}, {2, 0}]
    assert greedy(path, [3] * 4, rule).width == 1
    found = greedy(ring, [3] * 4, rule)
    assert found.width == 2
    assert sum(found.cells([3] * 4)) == 27 + 27 + 9 + 3
    assert follow(found.order, ring) == found


def test_equal_blocks_are_ordered_so_that_they_fold():
    rng = np.random.default_rng(1)
    inner, skip, joint = rng.normal(size=(5, 5)), rng.normal(size=(5, 5)), rng.normal(size=(5, 5))
    costs = [rng.normal(size=5) for _ in range(3)]
    edge_costs = {}
    for first in range(0, 300, 3):
        edge_costs |= {(first, first + 1): inner, (first + 1, first + 2): inner, (first, first + 2): skip}
        if first:
            edge_costs[first - 1, first] = joint
    _, instance = ascent_of(costs * 100, edge_costs)
    ordering, cells = blockwise(instance)
    assert sorted(ordering.order) == list(range(300))
    assert cells < 0.5 * sum(ordering.cells([5] * 300))
    assert blockwise(instance, last=7)[0].order[-1] == 7


@settings(max_examples=50, deadline=None, database=None)
@given(seeds)
def test_a_collapsed_table_is_the_same_matrix(seed):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(5, size=40), rng.integers(6, size=50)
    matrix = rng.integers(3, size=(5, 6)).astype(float)[np.ix_(rows, cols)]
    table = collapse(Table(matrix, None, None), {})
    assert table.matrix.size <= 30
    np.testing.assert_array_equal(table.dense(), matrix)
    np.testing.assert_array_equal(table.row(3), matrix[3])
    np.testing.assert_array_equal(table.col(4), matrix[:, 4])
    for kept in (np.array([7]), np.flatnonzero(rng.random(40) < 0.7)):
        np.testing.assert_array_equal(restrict(table, 0, kept).dense(), matrix[kept])
        np.testing.assert_array_equal(restrict(table, 1, kept).dense(), matrix[:, kept])


def test_joined_classes_separate_what_either_separates():
    both = join(Classes.of(np.array([0, 0, 1, 1, 1])), Classes.of(np.array([3, 3, 3, 9, 9])))
    assert both is not None
    assert both.labels.tolist() == [0, 0, 1, 2, 2]
    np.testing.assert_array_equal(both.lowest(np.array([5.0, 4.0, 3.0, 1.0, 1.0])), [4.0, 3.0, 1.0])
    assert both.cheapest(np.array([5.0, 4.0, 3.0, 1.0, 1.0])).tolist() == [1, 2, 3]


@given(st.lists(st.integers(1, 6), max_size=4), st.integers(1, 50))
def test_blocks_cover_everything_once(shape, limit):
    seen = np.zeros(shape, dtype=int)
    for block in blocks(tuple(shape), limit):
        assert seen[block].size <= limit
        seen[block] += 1
    assert (seen == 1).all()
