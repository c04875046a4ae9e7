"""Pipelines: every schedule does what one device does, in any layout, and says what it cannot do."""

import pytest

from strategies.test_conformance import Course, assert_same, hand_over, train
from syncline.errors import StrategyError
from syncline.strategies.registry import parse_strategy

MODEL = "mlp:size=tiny,layers=6"
STEPS = 5


@pytest.fixture(scope="module")
def wanted():
    return {}


@pytest.fixture
def one_device(run_ranks, wanted):
    def run(model=MODEL, optimizer="adamw"):
        if model not in wanted:
            wanted[model] = run_ranks(train, 1, Course("single", model, steps=STEPS, optimizer=optimizer))[0]
        return wanted[model]

    return run


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble"])
@pytest.mark.parametrize(("ranks", "options"), [(2, "microbatches=4"), (4, "stages=2,microbatches=2")])
def test_schedules_equal_one_device(schedule, ranks, options, run_ranks, one_device):
    course = Course(f"pipeline:schedule={schedule},{options}", MODEL, steps=STEPS)
    for result in run_ranks(train, ranks, course):
        assert_same(result, one_device())


def test_zero_bubble_equals_one_device_where_weights_are_tied(run_ranks, one_device):
    model = "gpt2-tiny:layers=2,width=32,heads=2,seq=16,positions=16"
    course = Course("pipeline:schedule=zero-bubble", model, steps=STEPS)
    assert_same(run_ranks(train, 2, course)[0], one_device(model))


def test_named_cuts_and_measured_balance_equal_one_device(run_ranks, one_device):
    named = Course("pipeline:cuts=blocks.0", MODEL, steps=STEPS)
    assert_same(run_ranks(train, 2, named)[0], one_device())
    measured = Course("pipeline:balance=measured", MODEL, steps=STEPS)
    assert_same(run_ranks(train, 2, measured)[0], one_device())


@pytest.mark.parametrize(("giver", "taker"), [("pipeline", "zero1"), ("sharded", "pipeline")])
def test_state_moves_to_and_from_other_strategies(giver, taker, run_ranks, tmp_path):
    wanted, weights = run_ranks(train, 1, Course("single", MODEL, steps=6))[0]
    first, then = Course(giver, MODEL, steps=3), Course(taker, MODEL, steps=3)
    assert_same(run_ranks(hand_over, 2, first, then, str(tmp_path))[0], (wanted[3:], weights))


def names_held(course: Course) -> list[str]:
    from strategies.test_conformance import prepare

    step, _ = prepare(course)
    assert {id(p) for group in step.optimizer.param_groups for p in group["params"]} == {
        id(p) for p in step.model.parameters()
    }
    return [name for name, _ in step.model.named_parameters()]


def test_each_rank_holds_its_own_stage_only(run_ranks):
    first, second = run_ranks(names_held, 2, Course("pipeline:cuts=blocks.1", MODEL))
    assert first == ["blocks.0.0.weight", "blocks.0.0.bias", "blocks.1.0.weight", "blocks.1.0.bias"]
    assert second[0] == "blocks.2.0.weight"
    assert second[-1] == "head.bias"


def fail_to_cut(strategy: str, model: str) -> str:
    with pytest.raises(StrategyError) as caught:
        names_held(Course(strategy, model))
    return str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "model", "words"),
    [
        ("pipeline", "mlp:size=tiny,layers=1", ["at most 2 stages", "not into 4", "blocks.0.0/linear"]),
        ("pipeline:stages=2,cuts=nowhere", MODEL, ["no module 'nowhere'", "blocks.3"]),
        ("pipeline:stages=2,cuts=decoder.0", "transformer:size=tiny", ["2 activations cross there"]),
    ],
)
def test_says_where_and_why_it_cannot_cut(strategy, model, words, run_ranks):
    for said in run_ranks(fail_to_cut, 4, strategy, model):
        assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("options", "ranks", "words"),
    [
        ("stages=3", 4, "does not divide the 4 ranks"),
        ("microbatches=3", 2, "not a multiple of 3"),
        ("microbatches=2", 4, "4 stages busy with as many micro-batches, but microbatches=2"),
        ("", 1, "at least 2 ranks"),
        ("cuts=a+b", 2, "2 cuts make 3 stages"),
        ("schedule=zero-bubble,microbatches=7,stages=3", 3, "not equal"),
    ],
)
def test_refuses_layouts_that_cannot_work(options, ranks, words):
    strategy = parse_strategy(f"pipeline:{options}" if options else "pipeline")
    with pytest.raises(StrategyError, match=words):
        strategy.check(world_size=ranks, global_batch=56, accumulate=1)
