"""The exact search against brute force, for any graph, any order and any way of pruning."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.errors import PlanningError
from syncline.planning.elimination import LayoutCosts, Solver, evaluate, solve

MODES = [(prune, fold) for prune in ("auto", "always", "never") for fold in (True, False)]


@pytest.fixture
def nothing_is_small(monkeypatch):
    """Has even the smallest problem collapsed, ordered and folded like a large one."""
    monkeypatch.setattr("syncline.planning.elimination.layouts.WORTH_COLLAPSING", 0)
    monkeypatch.setattr("syncline.planning.elimination.effort.CHEAP_CELLS", 0)


def brute_force(node_costs, edge_costs):
    """The value of every choice, as an array with one axis a node."""
    count = len(node_costs)
    total = np.zeros([len(costs) for costs in node_costs])
    for node, costs in enumerate(node_costs):
        total = total + costs.reshape([-1 if axis == node else 1 for axis in range(count)])
    for (u, v), costs in edge_costs.items():
        matrix = costs if u < v else costs.T
        total = total + matrix.reshape(
            [len(node_costs[axis]) if axis in (u, v) else 1 for axis in range(count)]
        )
    return total


def close(value, expected):
    return value == expected or math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)


def check(node_costs, edge_costs, **options):
    solution = solve(node_costs, edge_costs, **options)
    assert close(solution.value, brute_force(node_costs, edge_costs).min())
    assert close(evaluate(node_costs, edge_costs, solution.choice), solution.value)
    return solution


@st.composite
def problems(draw, values, nodes=8):
    """A graph of up to eight nodes; several may have the same costs, and so may edges, whichever way."""
    count = draw(st.integers(1, nodes))
    sizes = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pool = {}

    def costs(shape):
        if shape not in pool or draw(st.booleans()):
            pool[shape] = values(rng, shape)
        return pool[shape]

    pairs = [(u, v) for u in range(count) for v in range(count) if u != v]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=14)) if pairs else []
    edge_costs = {(u, v): costs((sizes[u], sizes[v])) for u, v in chosen}
    return [costs(size) for size in sizes], edge_costs


def real(rng, shape):
    return rng.normal(scale=10.0, size=shape)


def tied(rng, shape):
    return rng.integers(-1, 3, size=shape).astype(float)


def forbidding(rng, shape):
    return np.where(rng.random(shape) < 0.3, np.inf, rng.integers(0, 6, size=shape))


def spread(rng, shape):
    return rng.choice([0.0, 1.0, 1e3, 1e6], size=shape) * rng.random(shape)


def few_rows(rng, shape):
    """Costs that depend on two layouts of each end only, and so make equal rows and columns."""
    if isinstance(shape, int):
        return rng.integers(3, size=shape).astype(float)
    return rng.normal(size=(2, 2))[np.ix_(rng.integers(2, size=shape[0]), rng.integers(2, size=shape[1]))]


@pytest.mark.parametrize(("prune", "fold"), MODES)
@pytest.mark.parametrize("values", [real, tied, forbidding, spread])
def test_equals_brute_force_for_any_order(values, prune, fold):
    @settings(max_examples=25, deadline=None, database=None)
    @given(st.data())
    def run(data):
        node_costs, edge_costs = data.draw(problems(values))
        order = data.draw(st.none() | st.permutations(range(len(node_costs))))
        check(node_costs, edge_costs, order=order, prune=prune, fold=fold)

    run()


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize(("prune", "fold"), MODES)
@pytest.mark.parametrize("values", [tied, forbidding, few_rows])
def test_equals_brute_force_with_classes_and_folding(values, prune, fold):
    @settings(max_examples=25, deadline=None, database=None)
    @given(st.data())
    def run(data):
        node_costs, edge_costs = data.draw(problems(values))
        order = data.draw(st.none() | st.permutations(range(len(node_costs))))
        check(node_costs, edge_costs, order=order, prune=prune, fold=fold)

    run()


@settings(max_examples=60, deadline=None, database=None)
@given(st.data(), st.sampled_from([real, forbidding]))
def test_a_solver_serves_many_node_costs(data, values):
    node_costs, edge_costs = data.draw(problems(values))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    solver = Solver([len(costs) for costs in node_costs], edge_costs, prune="always")
    for _ in range(4):
        solution = solver.solve(node_costs)
        assert close(solution.value, brute_force(node_costs, edge_costs).min())
        assert close(evaluate(node_costs, edge_costs, solution.choice), solution.value)
        node_costs = [
            np.abs(costs * rng.choice([0.5, 1.0, 30.0]) + values(rng, len(costs))) for costs in node_costs
        ]


@settings(max_examples=60, deadline=None, database=None)
@given(st.data(), st.sampled_from([real, tied, forbidding]))
def test_marginals_equal_brute_force(data, values):
    node_costs, edge_costs = data.draw(problems(values, nodes=6))
    node = data.draw(st.integers(0, len(node_costs) - 1))
    found = Solver([len(costs) for costs in node_costs], edge_costs).marginals(node_costs, node)
    others = tuple(axis for axis in range(len(node_costs)) if axis != node)
    np.testing.assert_allclose(
        found, brute_force(node_costs, edge_costs).min(axis=others), rtol=1e-9, atol=1e-9
    )


def blocks(count, rng, sizes=(3, 4, 2)):
    """A chain of equal blocks with a residual edge, as the layers of a transformer are."""
    a, b, c = sizes
    parts = [rng.normal(size=size) for size in sizes]
    inner = [rng.normal(size=shape) for shape in ((a, b), (b, c), (a, c))]
    joint = rng.normal(size=(c, a))
    node_costs, edge_costs = [], {}
    for block in range(count):
        first = 3 * block
        node_costs += parts
        pairs = [(first, first + 1), (first + 1, first + 2), (first, first + 2)]
        edge_costs |= dict(zip(pairs, inner, strict=True))
        if block:
            edge_costs[first - 1, first] = joint
    return node_costs, edge_costs


def inside_first(count):
    """Eliminates the middle of each block before the chain that is left."""
    return [3 * block + 1 for block in range(count)] + [node for node in range(3 * count) if node % 3 != 1]


@pytest.mark.usefixtures("nothing_is_small")
def test_repeated_blocks_are_computed_once():
    node_costs, edge_costs = blocks(40, np.random.default_rng(3))
    order = inside_first(40)
    folded = solve(node_costs, edge_costs, order=order, prune="never")
    plain = solve(node_costs, edge_costs, order=order, prune="never", fold=False)
    assert folded.value == plain.value
    assert folded.choice == plain.choice
    assert plain.statistics.tables == plain.statistics.steps == 120
    assert folded.statistics.tables == 81


def test_repeated_blocks_equal_brute_force():
    check(*blocks(3, np.random.default_rng(5)), prune="never")


@pytest.mark.usefixtures("nothing_is_small")
def test_copies_of_an_array_fold_like_the_array_itself():
    node_costs, edge_costs = blocks(9, np.random.default_rng(4))
    copied = solve(
        [costs.copy() for costs in node_costs],
        {pair: costs.copy() for pair, costs in edge_costs.items()},
        order=inside_first(9),
        prune="never",
    )
    shared = solve(node_costs, edge_costs, order=inside_first(9), prune="never")
    assert copied.statistics.tables == shared.statistics.tables < 27
    assert copied.choice == shared.choice


def test_layouts_give_the_same_as_full_matrices():
    rng = np.random.default_rng(8)
    node_costs = [rng.normal(size=9), rng.normal(size=7), rng.normal(size=5)]
    rows, cols = rng.integers(4, size=9), rng.integers(3, size=7)
    by_layout = LayoutCosts(rng.normal(size=(4, 3)), rows, cols)
    own, shared = rng.permutation(7), np.array([5, 0, 3, 1, 1])
    permuted = LayoutCosts(rng.normal(size=(7, 6)), own, shared)
    dense = {
        (0, 1): np.asarray(by_layout.matrix)[np.ix_(rows, cols)],
        (1, 2): np.asarray(permuted.matrix)[np.ix_(own, shared)],
    }
    expected = check(node_costs, dense)
    found = solve(node_costs, {(0, 1): by_layout, (1, 2): permuted})
    assert found.choice == expected.choice
    assert found.value == expected.value
    assert evaluate(node_costs, {(0, 1): by_layout, (1, 2): permuted}, found.choice) == found.value


@pytest.mark.usefixtures("nothing_is_small")
@pytest.mark.parametrize("prune", ["always", "never"])
def test_equal_rows_collapse_without_changing_the_optimum(prune):
    rng = np.random.default_rng(2)
    sizes = [40, 50, 45, 30]
    node_costs = [rng.normal(size=size) for size in sizes]
    edge_costs = {
        (u, v): rng.normal(size=(6, 5))[
            np.ix_(rng.integers(6, size=sizes[u]), rng.integers(5, size=sizes[v]))
        ]
        for u, v in [(0, 1), (1, 2), (2, 3), (0, 3), (2, 0)]
    }
    solution = check(node_costs, edge_costs, prune=prune)
    if prune == "never":
        assert solution.statistics.cells < 40 * 50 * 45


def test_large_tables_are_cut_into_blocks(monkeypatch):
    rng = np.random.default_rng(6)
    node_costs = [rng.normal(size=size) for size in (7, 6, 5, 8, 4)]
    edge_costs = {
        (u, v): rng.normal(size=(len(node_costs[u]), len(node_costs[v]))) for u in range(5) for v in range(u)
    }
    whole = check(node_costs, edge_costs, prune="never")
    monkeypatch.setattr("syncline.planning.elimination.tabulation.BLOCK_CELLS", 37)
    assert check(node_costs, edge_costs, prune="never").choice == whole.choice


def test_tables_beyond_counting_are_refused():
    node_costs = [np.zeros(500) for _ in range(116)]
    costs = np.random.default_rng(1).random((500, 500))
    edge_costs = {(u, v): costs for u in range(116) for v in range(u)}
    with pytest.raises(PlanningError, match="GB"):
        solve(node_costs, edge_costs, prune="never")


def test_tables_that_do_not_fit_are_refused():
    rng = np.random.default_rng(1)
    node_costs = [rng.normal(size=30) for _ in range(6)]
    edge_costs = {(u, v): rng.normal(size=(30, 30)) for u in range(6) for v in range(u)}
    with pytest.raises(PlanningError, match=r"GB(?s:.*)fewer configurations"):
        solve(node_costs, edge_costs, prune="never", table_bytes=10**6)


@pytest.mark.parametrize(
    ("node_costs", "edge_costs", "message"),
    [
        ([np.zeros(2)], {(0, 0): np.zeros((2, 2))}, "joins node 0 to itself"),
        ([np.zeros(2), np.zeros(0)], {}, "no configuration"),
        ([np.zeros((2, 2))], {}, "vector"),
        ([np.zeros(2)] * 2, {(0, 2): np.zeros((2, 2))}, "nodes are 0 to 1"),
        ([np.zeros(2)] * 2, {(0, 1): np.zeros((2, 3))}, "2 by 3"),
        ([np.zeros(2)] * 2, {(0, 1): np.zeros((0, 2))}, "must be a matrix"),
        ([np.zeros(2)] * 2, {(0, 1): np.zeros(2)}, "must be a matrix"),
        ([np.zeros(2)] * 2, {(0, 1): np.full((2, 2), np.nan)}, "NaN"),
        ([np.array([0, -np.inf])], {}, "NaN"),
        ([np.zeros(2)] * 2, {(0, 1): LayoutCosts(np.zeros((1, 1)), [0, 1], [0, 0])}, "do not index"),
    ],
)
def test_wrong_input_is_named(node_costs, edge_costs, message):
    with pytest.raises(ValueError, match=message):
        solve(node_costs, edge_costs)


def test_wrong_order_and_wrong_sizes_are_named():
    with pytest.raises(ValueError, match="exactly once"):
        solve([np.zeros(2)] * 2, {}, order=[0, 0])
    with pytest.raises(ValueError, match="configurations"):
        Solver([2, 2], {}).solve([np.zeros(2), np.zeros(3)])


def test_nothing_to_choose():
    assert solve([], {}).value == 0.0
    solution = solve([np.array([3.0, 1.0])], {})
    assert (solution.value, solution.choice, solution.statistics.space) == (1.0, (1,), 2)


@pytest.mark.parametrize("prune", ["always", "never"])
def test_all_forbidden_is_infinite(prune):
    allowed = np.zeros(2)
    assert solve([np.full(2, np.inf), allowed], {}, prune=prune).value == math.inf
    assert solve([allowed, allowed], {(0, 1): np.full((2, 2), np.inf)}, prune=prune).value == math.inf


def test_equal_choices_are_settled_the_same_way_each_time():
    rng = np.random.default_rng(9)
    node_costs = [tied(rng, 4) for _ in range(30)]
    edge_costs = {(u, u + step): tied(rng, (4, 4)) for u in range(28) for step in (1, 2)}
    choices = {
        solve(node_costs, edge_costs, prune=prune).choice for prune in ("auto", "always") for _ in range(3)
    }
    values = {evaluate(node_costs, edge_costs, choice) for choice in choices}
    assert len(values) == 1
    assert len({solve(node_costs, edge_costs).choice for _ in range(3)}) == 1


def test_input_arrays_are_left_alone():
    rng = np.random.default_rng(11)
    node_costs = [rng.normal(size=5) for _ in range(4)]
    edge_costs = {(u, u + 1): rng.normal(size=(5, 5)) for u in range(3)} | {(2, 0): rng.normal(size=(5, 5))}
    arrays = [*node_costs, *edge_costs.values()]
    before = [array.copy() for array in arrays]
    solve(node_costs, edge_costs, prune="always")
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
