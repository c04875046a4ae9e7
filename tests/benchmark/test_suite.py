"""What a suite may say, and which cells it means."""

from collections import Counter
from typing import Any

import pytest

from syncline.benchmark.cells import list_cells
from syncline.benchmark.demo import demo_suite
from syncline.benchmark.running import cell_config
from syncline.benchmark.suite import LEAST_MEASURED, Budget, Suite, uncounted_steps
from syncline.benchmark.suite_file import narrow, read_suite, suite_text, with_settings
from syncline.errors import ConfigError, SynclineError
from syncline.strategies.registry import STRATEGIES, parse_strategy

GOOD = """
models = ["gpt2-tiny"]
strategies = ["single", "data", "sharded:group=2"]
seeds = [0, 1, 2]

[budget]
steps = 40

[train]
data = "stdlib-text"

[train.optimizer]
lr = 0.01
"""


def read(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return read_suite(path)


def small(**changes):
    given: dict[str, Any] = {
        "models": ("gpt2-tiny",),
        "strategies": ("single", "data"),
        "budget": Budget(steps=40),
    }
    return Suite(name="small", **(given | changes))


def test_a_suite_is_read_with_its_defaults_and_the_settings_of_its_runs(tmp_path):
    suite = read(tmp_path, GOOD)
    assert (suite.name, suite.world_sizes, suite.clusters) == ("mine", (2,), ("local",))
    config = suite.base_config()
    assert config.optimizer is not None
    assert (config.optimizer.lr, config.data) == (0.01, "stdlib-text")


def test_the_text_of_a_suite_is_the_suite(tmp_path):
    suite = read(tmp_path, GOOD)
    assert read(tmp_path, suite_text(suite)) == suite


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("steps = 40", "steps = 40\nseconds = 3"), "steps, seconds; give one of"),
        (("steps = 40", "steps = 0"), "budget.steps is 0"),
        (("steps = 40", "samples = 32"), "2 steps"),
        (("steps = 40", "samples = 10"), "The budget is 0 steps with a global batch of 16"),
        (("steps = 40", "steps = 10"), "at least 11: 7 for warm-up and inspection, 4 to measure"),
        (('"gpt2-tiny"', '"gpt3"'), "gpt3"),
        (('"gpt2-tiny"', '"nowhere:build"'), "nowhere"),
        (('"data"', '"dada"'), "Did you mean 'data'"),
        (('"data"', '"single"'), "single twice"),
        (("seeds = [0, 1, 2]", "seeds = []"), "seeds is empty"),
        (("seeds = [0, 1, 2]", "sedes = [0]"), "Did you mean 'seeds'"),
        (("seeds = [0, 1, 2]", 'clusters = ["2x"]'), "2x"),
        (("lr = 0.01", "rate = 0.01"), "optimizer.rate"),
        (('data = "stdlib-text"', "steps = 3"), "the suite itself decides"),
        (("seeds = [0, 1, 2]", "inspect = 60"), "inspect is 60"),
    ],
)
def test_mistakes_are_named(tmp_path, change, words):
    assert change[0] in GOOD
    with pytest.raises(SynclineError) as caught:
        read(tmp_path, GOOD.replace(*change))
    assert words in str(caught.value)


def test_every_strategy_runs_with_every_seed_and_seeds_take_turns():
    suite = small(strategies=("single", "data", "sharded", "zero1"), seeds=(0, 1))
    cells = list_cells(suite)
    assert Counter(cell.strategy for cell in cells) == dict.fromkeys(suite.strategies, 2)
    assert [cell.seed for cell in cells] == [0] * 4 + [1] * 4
    assert [cell.strategy for cell in cells[4:]] == ["sharded", "zero1", "single", "data"]
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_reference_has_one_rank_wherever_others_run():
    suite = small(world_sizes=(2, 4), clusters=("local", "2x1@1gbit"))
    cells = list_cells(suite)
    assert [cell.strategy for cell in cells].count("single") == 1
    assert {(cell.world_size, cell.cluster) for cell in cells if cell.strategy == "data"} == {
        (2, "local"),
        (4, "local"),
        (2, "2x1@1gbit"),
    }


@pytest.mark.parametrize(("scaling", "batches"), [("strong", [16, 16, 16]), ("weak", [16, 32, 64])])
def test_what_scaling_means(scaling, batches):
    cells = list_cells(small(scaling=scaling, world_sizes=(2, 4)))
    assert sorted(cell.batch for cell in cells) == batches


def test_budgets_are_the_same_samples():
    assert Budget(samples=640).steps_of(16) == 40
    assert Budget(samples=640).steps_of(32) == 20
    assert Budget(steps=7).steps_of(32) == 7
    assert Budget(seconds=3.0).steps_of(32) is None


@pytest.mark.parametrize(("inspect", "least"), [(0, 7), (1, 11), (4, 11)])
def test_some_steps_are_left_to_measure_besides_warm_up_and_inspection(inspect, least):
    suite = small(inspect=inspect, budget=Budget(steps=least))
    config = cell_config(suite, list_cells(suite)[0], steps=least)
    assert least - uncounted_steps(config.inspect) >= LEAST_MEASURED
    with pytest.raises(ConfigError, match=f"at least {least}"):
        small(inspect=inspect, budget=Budget(steps=least - 1))


def test_the_batch_of_emulated_ranks_counts_under_weak_scaling():
    with pytest.raises(ConfigError, match="10 steps with a global batch of 64"):
        small(scaling="weak", clusters=("local", "2x2@1gbit"), budget=Budget(samples=640))
    assert small(scaling="weak", clusters=("local",), budget=Budget(samples=640))


def test_a_suite_is_narrowed(tmp_path):
    suite = demo_suite()
    assert narrow(suite, only=["data"]).strategies == ("data", "data:compress=powersgd")
    assert narrow(suite, ranks=4).world_sizes == (4,)
    with pytest.raises(ConfigError, match="Did you mean 'sharded'"):
        narrow(suite, only=["shraded"])
    path = tmp_path / "more.toml"
    path.write_text("precision = 'bf16'")
    assert with_settings(suite, path).base_config().precision == "bf16"
    path.write_text("precison = 'bf16'")
    with pytest.raises(ConfigError, match="Did you mean 'precision'"):
        with_settings(suite, path)


def test_the_demo_covers_all_strategies():
    names = {parse_strategy(text).name for text in demo_suite().strategies}
    assert names == set(STRATEGIES)


@pytest.mark.parametrize("name", ["survey", "survey-full", "pase", "local", "daso"])
def test_the_suites_that_come_with_syncline_are_right(name, pytestconfig):
    suite = read_suite(pytestconfig.rootpath / "benchmarks" / "suites" / f"{name}.toml")
    assert suite.name == name
    assert len(list_cells(suite)) > 4
