"""The known optima of PaSE's cost tables, and larger graphs against independent solvers."""

from pathlib import Path

import numpy as np
import pytest

from syncline.planning.elimination import Solver, evaluate, solve

TABLES = Path(__file__).parents[2] / ".." / "shared" / "data" / "pase"
OPTIMA = {
    "alexnet-p8": (9.709829651e10, 6.01108833248e11),
    "alexnet-p32": (5.313634955e10, 6.18772808312e11),
    "rnnlm-p8": (4.024963187e12, 7.1012230144e12),
    "rnnlm-p32": (1.491938058e12, 5.3506222336e12),
    "inception3-p8": (7.821406024e11, 7.98678010208e11),
    "inception3-p32": (6.024255998e11, 6.47187662552e11),
    "transformer-p8": (1.421082829e12, 1.850200256512e12),
    "transformer-p32": (7.275666145e11, 1.369312304128e12),
}


@pytest.fixture
def load():
    if not TABLES.is_dir():
        pytest.skip(f"the cost tables are not at {TABLES}")

    def read(name):
        with np.load(TABLES / f"{name}.npz") as stored:
            arrays = dict(stored)
        node_costs = [arrays[f"node_costs_{number}"] for number in arrays["nodes"]]
        edge_costs = {(u, v): arrays[f"edge_costs_{number}"] for u, v, number in arrays["edges"].tolist()}
        return node_costs, edge_costs, arrays["data_parallel_choice"]

    return read


@pytest.mark.parametrize("name", OPTIMA)
def test_reproduces_the_known_optimum(load, name):
    node_costs, edge_costs, data_parallel = load(name)
    optimum, data_parallel_cost = OPTIMA[name]
    solution = solve(node_costs, edge_costs)
    assert solution.value == pytest.approx(optimum, rel=1e-9)
    assert evaluate(node_costs, edge_costs, solution.choice) == pytest.approx(solution.value, rel=1e-12)
    assert evaluate(node_costs, edge_costs, data_parallel) == pytest.approx(data_parallel_cost, rel=1e-9)


@pytest.mark.parametrize(
    "options", [{"prune": "always"}, {"prune": "never"}, {"prune": "never", "fold": False}]
)
@pytest.mark.parametrize("name", ["inception3-p8", "transformer-p8"])
def test_pruning_and_folding_keep_the_optimum(load, name, options):
    node_costs, edge_costs, _ = load(name)
    assert solve(node_costs, edge_costs, **options).value == pytest.approx(OPTIMA[name][0], rel=1e-9)


def test_bounds_and_folding_do_their_work(load):
    node_costs, edge_costs, _ = load("transformer-p8")
    bounded = solve(node_costs, edge_costs, prune="always").statistics
    assert bounded.kept < 0.05 * bounded.configurations
    folded = solve(node_costs, edge_costs, prune="never").statistics
    plain = solve(node_costs, edge_costs, prune="never", fold=False).statistics
    assert folded.tables < 0.7 * plain.tables
    assert folded.cells < 0.5 * plain.cells


def test_the_second_best_of_a_node_costs_what_solving_without_the_best_does(load):
    node_costs, edge_costs, _ = load("transformer-p8")
    solver = Solver([len(costs) for costs in node_costs], edge_costs)
    best = solver.solve(node_costs)
    node = 100
    marginals = solver.marginals(node_costs, node)
    assert marginals[best.choice[node]] == pytest.approx(best.value, rel=1e-12)
    without = list(node_costs)
    without[node] = np.where(np.arange(len(marginals)) == best.choice[node], np.inf, node_costs[node])
    assert np.sort(marginals)[1] == pytest.approx(solver.solve(without).value, rel=1e-12)


def random_graph(rng, nodes, configurations, *, reach):
    """A chain in which some nodes also see one up to ``reach`` further on."""
    node_costs = [rng.random(configurations) for _ in range(nodes)]
    pairs = {(node, node + 1) for node in range(nodes - 1)}
    for node in range(0, nodes - reach, reach):
        pairs.add((node, node + int(rng.integers(2, reach + 1))))
    return node_costs, {pair: rng.random((configurations, configurations)) for pair in sorted(pairs)}


def with_milp(node_costs, edge_costs):
    """The optimum as an integer program: x_v(i) and y_uv(i, j) are 0 or 1 and consistent."""
    highspy = pytest.importorskip("highspy", reason="highspy, the independent solver, is not installed")
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    chosen = [[highs.addVariable(0, 1, float(cost)) for cost in costs] for costs in node_costs]
    for variables in chosen:
        highs.addConstr(highs.qsum(variables) == 1)
        for variable in variables:
            highs.changeColIntegrality(variable.index, highspy.HighsVarType.kInteger)
    for (u, v), matrix in edge_costs.items():
        both = [[highs.addVariable(0, 1, float(cost)) for cost in row] for row in matrix]
        for i, row in enumerate(both):
            highs.addConstr(highs.qsum(row) == chosen[u][i])
        for j, column in enumerate(zip(*both, strict=True)):
            highs.addConstr(highs.qsum(column) == chosen[v][j])
    highs.run()
    return highs.getInfo().objective_function_value


@pytest.mark.parametrize("prune", ["always", "never"])
def test_equals_an_integer_program(prune):
    node_costs, edge_costs = random_graph(np.random.default_rng(12), 40, 5, reach=4)
    assert solve(node_costs, edge_costs, prune=prune).value == pytest.approx(
        with_milp(node_costs, edge_costs), rel=1e-6
    )


@pytest.mark.parametrize("prune", ["auto", "always", "never"])
def test_a_long_chain_equals_the_shortest_path(prune):
    rng = np.random.default_rng(13)
    node_costs = [rng.random(12) for _ in range(600)]
    steps = [rng.random((12, 12)) for _ in range(599)]
    reached = node_costs[0]
    for costs, matrix in zip(node_costs[1:], steps, strict=True):
        reached = (reached[:, None] + matrix).min(axis=0) + costs
    solution = solve(node_costs, {(at, at + 1): matrix for at, matrix in enumerate(steps)}, prune=prune)
    assert solution.value == pytest.approx(reached.min(), rel=1e-12)
    assert solution.statistics.width <= 1
