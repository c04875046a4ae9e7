"""What every exact strategy must do: the same mathematics as one device, and states that move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from syncline.cluster.rank import current_rank
from syncline.strategies.protocol import Job, StepOptions, TrainStep
from syncline.strategies.registry import STRATEGIES, parse_strategy
from syncline.training.batches import BatchSource, open_batches
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

BATCH = 8
STEPS = 20
GPT = "gpt2-tiny:layers=4,width=64,heads=4,seq=32"
# Adam divides by the gradient's own size, so that rounding noise in a gradient near 0 becomes a whole step:
# the ResNet, where ReLUs leave many such gradients, is compared with the optimizer that it is trained with.
MODELS = [(GPT, "adamw"), ("resnet18:size=tiny,norm=group", "sgd"), ("mlp:size=tiny", "adamw")]
EXACT = [name for name, kind in STRATEGIES.items() if kind.exact and name != "single"]

RunRanks = Callable[..., list[Any]]


@dataclass(frozen=True)
class Course:
    """One training of a built-in model."""

    strategy: str
    model: str
    steps: int = STEPS
    options: StepOptions = field(default_factory=StepOptions)
    optimizer: str = "adamw"


def train(course: Course) -> tuple[list[float], dict[str, Tensor]]:
    step, batches = prepare(course)
    losses = [train_once(step, batches, number) for number in range(course.steps)]
    return losses, whole_weights(step)


def prepare(
    course: Course, handed: list[torch.optim.Optimizer] | None = None
) -> tuple[TrainStep, BatchSource]:
    rank = current_rank()
    workload = load_workload(course.model, seed=3)
    model = workload.build_model()
    strategy = parse_strategy(course.strategy)
    strategy.check(world_size=rank.world_size, global_batch=BATCH, accumulate=course.options.accumulate)
    job = Job(
        model=model,
        optimizer=make_optimizer(course.optimizer, model),
        compute_loss=workload.compute_loss,
        rank=rank,
        device=torch.device("cpu"),
        options=course.options,
        example=workload_batch(workload, BATCH // course.options.accumulate),
    )
    if handed is not None:
        handed.append(job.optimizer)
    return strategy.setup(job), open_batches(workload, BATCH, 3)


def make_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0, "lr": 0.005}]
    return torch.optim.SGD(groups, lr=0.01, momentum=0.9, weight_decay=0.1)


def train_once(step: TrainStep, batches: BatchSource, number: int) -> float:
    loss = step(batches.rows(number, step.rows(BATCH)))
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def whole_weights(step: TrainStep) -> dict[str, Tensor]:
    """All weights, also those that only other ranks hold; what several hold must be the same."""
    own = {name: _whole(p.detach()).clone() for name, p in step.model.named_parameters()}
    told: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(told, own)
    whole: dict[str, Tensor] = {}
    for part in told:
        for name, weight in part.items():
            assert torch.equal(whole.setdefault(name, weight), weight), f"ranks differ in {name}"
    return whole


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@pytest.fixture(scope="module")
def _references() -> dict[Course, Any]:
    return {}


@pytest.fixture
def reference(run_ranks: RunRanks, _references) -> Callable[[Course], tuple[list[float], dict[str, Tensor]]]:
    def run(course: Course) -> tuple[list[float], dict[str, Tensor]]:
        if course not in _references:
            _references[course] = run_ranks(train, 1, course)[0]
        return _references[course]

    return run


def assert_same(given: tuple[list[float], dict[str, Tensor]], wanted: tuple[list[float], Any]) -> None:
    assert given[0] == pytest.approx(wanted[0], rel=1e-5)
    assert given[1].keys() == wanted[1].keys()
    for name, weight in given[1].items():
        torch.testing.assert_close(weight, wanted[1][name], atol=1e-4, rtol=1e-4, msg=f"{name} differs")


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize(
    ("ranks", "model", "optimizer"),
    [
        pytest.param(ranks, *one, marks=pytest.mark.thorough if ranks == 4 and "resnet" in one[0] else ())
        for ranks in (2, 4)
        for one in MODELS
    ],
)
def test_equals_one_device(strategy, ranks, model, optimizer, run_ranks, reference):
    wanted = reference(Course("single", model, optimizer=optimizer))
    assert len(set(wanted[0])) == STEPS
    for result in run_ranks(train, ranks, Course(strategy, model, optimizer=optimizer)):
        assert_same(result, wanted)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("sharded:group=2", 4), ("sharded:reshard-after-forward=no", 2), ("data:bucket-mb=1", 2)],
)
def test_options_of_strategies_equal_one_device(strategy, ranks, run_ranks, reference):
    wanted = reference(Course("single", GPT))
    assert_same(run_ranks(train, ranks, Course(strategy, GPT))[0], wanted)


@pytest.mark.parametrize("strategy", EXACT)
@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        (StepOptions(accumulate=2), "adamw"),
        (StepOptions(clip_norm=0.05), "sgd groups"),
        (StepOptions(activation_checkpointing=True), "adamw"),
        (StepOptions(accumulate=2, clip_norm=0.05, activation_checkpointing=True), "sgd groups"),
    ],
    ids=["accumulate", "clip", "recompute", "all"],
)
def test_options_equal_one_device(strategy, options, optimizer, run_ranks, reference):
    course = Course(strategy, GPT, steps=6, options=options, optimizer=optimizer)
    wanted = reference(Course("single", GPT, steps=6, options=options, optimizer=optimizer))
    assert_same(run_ranks(train, 2, course)[0], wanted)


def test_clipping_and_recomputing_do_what_they_say(reference):
    plain = reference(Course("single", GPT, steps=6))
    clipped = reference(Course("single", GPT, steps=6, options=StepOptions(clip_norm=1e-3)))
    recomputed = reference(Course("single", GPT, steps=6, options=StepOptions(activation_checkpointing=True)))
    assert clipped[0][1:] != plain[0][1:]
    assert recomputed[0] == plain[0]


@pytest.mark.parametrize("strategy", ["single", *EXACT])
def test_bf16_learns_and_is_not_fp32(strategy, run_ranks, reference):
    ranks = 1 if strategy == "single" else 2
    course = Course(strategy, GPT, steps=8, options=StepOptions(precision="bf16"))
    losses, weights = run_ranks(train, ranks, course)[0]
    exact, _ = reference(Course("single", GPT, steps=8))
    assert losses != exact
    assert losses == pytest.approx(exact, rel=0.02)
    assert losses[-1] < losses[0]
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def hand_over(giver: Course, taker: Course, folder: str) -> tuple[list[float], dict[str, Tensor]]:
    """Train some steps with one strategy and go on with another from its state."""
    import torch.distributed.checkpoint as dcp

    step, batches = prepare(giver)
    for number in range(giver.steps):
        train_once(step, batches, number)
    dcp.save({"step": step}, checkpoint_id=folder)
    other, batches = prepare(taker)
    dcp.load({"step": other}, checkpoint_id=folder)
    losses = [train_once(other, batches, giver.steps + number) for number in range(taker.steps)]
    return losses, whole_weights(other)


@pytest.mark.parametrize("giver", ["data", "sharded", "zero1"])
@pytest.mark.parametrize("taker", ["data", "sharded", "zero1"])
def test_state_moves_between_strategies(giver, taker, run_ranks, reference, tmp_path):
    wanted, weights = reference(Course("single", GPT, steps=10))
    first, then = Course(giver, GPT, steps=5), Course(taker, GPT, steps=5)
    result = run_ranks(hand_over, 2, first, then, str(tmp_path))[0]
    assert_same(result, (wanted[5:], weights))


def train_with_schedules(course: Course) -> list[float]:
    """One schedule on the step's optimizer and one on the optimizer that was handed in."""
    handed: list[torch.optim.Optimizer] = []
    step, batches = prepare(course, handed)
    outer = torch.optim.lr_scheduler.LambdaLR(step.optimizer, lambda done: 1.0 / (1 + done))
    losses = []
    for number in range(course.steps):
        losses.append(train_once(step, batches, number))
        outer.step()
        for group in handed[0].param_groups:
            group["lr"] *= 0.5
    return losses


@pytest.mark.parametrize("strategy", EXACT)
def test_schedules_act(strategy, run_ranks):
    wanted = run_ranks(train_with_schedules, 1, Course("single", GPT, steps=6))[0]
    plain, _ = run_ranks(train, 1, Course("single", GPT, steps=6))[0]
    assert wanted != plain
    given = run_ranks(train_with_schedules, 2, Course(strategy, GPT, steps=6))[0]
    assert given == pytest.approx(wanted, rel=1e-5)


def evaluate_twice(course: Course) -> tuple[float, float]:
    step, batches = prepare(course)
    batch = batches.rows(0, step.rows(BATCH))
    first = step.evaluate(batch).clone()
    again = step.evaluate(batch)
    assert all(p.grad is None for p in step.model.parameters())
    dist.all_reduce(first)
    dist.all_reduce(again)
    return first.item() / dist.get_world_size(), again.item() / dist.get_world_size()


def evaluate_between(course: Course) -> tuple[list[float], dict[str, Tensor]]:
    """Train, evaluate, take the state and put it back, and go on training."""
    step, batches = prepare(course)
    losses = []
    for number in range(course.steps):
        losses.append(train_once(step, batches, number))
        step.evaluate(batches.rows(0, step.rows(BATCH)))
        step.load_state_dict(step.state_dict())
    return losses, whole_weights(step)


@pytest.mark.parametrize("strategy", EXACT)
def test_evaluating_and_saving_between_steps_changes_nothing(strategy, run_ranks, reference):
    wanted = reference(Course("single", GPT, steps=4))
    assert_same(run_ranks(evaluate_between, 2, Course(strategy, GPT, steps=4))[0], wanted)


@pytest.mark.parametrize("strategy", EXACT)
def test_evaluation_changes_nothing(strategy, run_ranks):
    first, again = run_ranks(evaluate_twice, 2, Course(strategy, GPT))[0]
    wanted = run_ranks(evaluate_twice, 1, Course("single", GPT))[0][0]
    assert first == again == pytest.approx(wanted, rel=1e-5)
