"""Local parallelism on ranks: timing changes nothing, little is kept, nothing goes back."""

import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ranks import part
from strategies.local_runs import GPT, MLP, UNTIED, assert_identical, step_of, train_local
from strategies.test_conformance import BATCH, Course, prepare, train_once, whole_weights
from syncline.cluster.traffic import TrafficMeter
from syncline.errors import StrategyError
from syncline.strategies.protocol import StepOptions
from syncline.strategies.registry import parse_strategy
from syncline.training.loading import load_step

STEPS = 5


@pytest.fixture(scope="module")
def references():
    return {}


@pytest.fixture
def reference(run_ranks, references):
    """The same blocks in one process, without queues."""

    def run(course):
        if course not in references:
            references[course] = run_ranks(train_local, 1, course)[0]
        return references[course]

    return run


@pytest.mark.parametrize(
    ("ranks", "options", "model"),
    [
        (2, "chunks=4,queue=1", GPT),
        (4, "chunks=4,queue=3", GPT),
        (2, "variant=overlap,overlap=3,chunks=4,combine=mean", MLP),
        (4, "variant=overlap,chunks=4,queue=1", MLP),
        (4, "variant=greedy,queue=1,head=linear", MLP),
        (4, "chunks=4,head=readout,refresh=2", UNTIED),
        (2, f"chunks=2,queue={2 * STEPS}", MLP),
    ],
)
def test_timing_changes_nothing(options, model, ranks, run_ranks, reference):
    wanted = reference(Course(f"local:stages=1,{options}", model, steps=STEPS))
    course = Course(f"local:{options}", model, steps=STEPS)
    for given in run_ranks(train_local, ranks, course, ranks):
        assert_identical(given, wanted)


def test_replicas_average_and_micro_batches_add_up(run_ranks, reference):
    wanted = reference(Course("local:stages=1,chunks=2", MLP, steps=STEPS))
    replicated = run_ranks(train_local, 4, Course("local:stages=2,chunks=2", MLP, steps=STEPS))[0]
    options = StepOptions(accumulate=2)
    added = run_ranks(train_local, 2, Course("local:chunks=2", MLP, steps=STEPS, options=options))[0]
    for given in (replicated, added):
        assert given.keys() == wanted.keys()
        for name, weight in wanted.items():
            torch.testing.assert_close(given[name], weight, atol=1e-5, rtol=1e-4)


def count_traffic(course):
    step, batches = step_of(course)
    for number in range(3):
        step(batches.rows(number, step.rows(BATCH)))
    dist.barrier()
    activation = step.blocks[-1].training.layers.exit
    return step.transport.forward_bytes, step.transport.backward_bytes, activation.bytes


@pytest.mark.parametrize("options", ["chunks=2", "variant=greedy,head=linear"])
def test_nothing_goes_back(options, run_ranks):
    first, last = run_ranks(count_traffic, 2, Course(f"local:{options}", MLP))
    assert first == (3 * first[2], 0, first[2])
    assert last[:2] == (0, 0)


def test_an_overlap_sends_one_cotangent_back(run_ranks):
    first, last = run_ranks(count_traffic, 2, Course("local:variant=overlap,chunks=2", MLP))
    assert last[1] == first[0] == 3 * first[2]


def count_in_kernel(course):
    step, batches = step_of(course)
    meter = TrafficMeter()
    for number in range(3):
        step(batches.rows(number, step.rows(BATCH)))
    dist.barrier()
    sent = meter.sent()
    assert sent is not None
    return sent["node"], step.blocks[-1].training.layers.exit.bytes


@pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")
def test_the_kernel_sees_next_to_nothing_go_back(run_ranks):
    """What remains are Gloo's own notes that a receive is posted."""
    wide = "mlp:size=tiny,layers=4,width=1024"
    (first, activation), (last, _) = run_ranks(count_in_kernel, 2, Course("local", wide))
    assert first > 3 * activation
    assert last < activation / 4


def losses_of(course):
    step, batches = step_of(course)
    own = [step(batches.rows(number, step.rows(BATCH))).item() for number in range(3)]
    # The last stage still reads what the first one sent, and the step holds the connection.
    dist.barrier()
    return step.loss_weight, own, step.lead


def test_the_last_stage_has_the_loss(run_ranks):
    (first, own, lead), (last, model, _) = run_ranks(losses_of, 2, Course("local:queue=3", GPT))
    assert (first, last) == (0.0, 1.0)
    assert own != model
    assert lead == 7


def hand_over(giver, taker, folder):
    step, batches = step_of(giver)
    for number in range(giver.steps):
        train_once(step, batches, number)
    dcp.save(step.state_dict(), checkpoint_id=folder)
    other, batches = step_of(taker)
    new = load_step(other, folder)
    moved = whole_weights(step), whole_weights(other)
    for number in range(taker.steps):
        other(batches.rows(giver.steps + number, other.rows(BATCH)))
    return new, moved, whole_weights(other)


@pytest.mark.parametrize(
    ("options", "model"), [("chunks=2", GPT), ("chunks=2,head=readout,refresh=2", UNTIED)]
)
def test_goes_on_as_if_never_stopped(options, model, run_ranks, tmp_path):
    course = Course(f"local:{options}", model, steps=3)
    new, _, weights = run_ranks(hand_over, 2, course, course, tmp_path)[0]
    assert new == []
    through = run_ranks(train_local, 2, Course(f"local:{options}", model, steps=6))[0]
    assert_identical(weights, {name: through[name] for name in weights})


def test_goes_on_with_other_blocks_and_new_heads(run_ranks, tmp_path):
    giver = Course("local:chunks=4,stages=2", MLP, steps=3)
    taker = Course("local:chunks=3,stages=2", MLP, steps=3)
    for new, (given, taken), weights in run_ranks(hand_over, 2, giver, taker, tmp_path):
        assert_identical(taken, given)
        assert weights.keys() == given.keys()
        assert all(name.startswith("auxiliary.") for name in new)
    assert run_ranks(hand_over, 2, giver, taker, tmp_path)[0][0]


@pytest.mark.parametrize(("stages", "others"), [(2, 4), (4, 2)])
def test_goes_on_with_another_number_of_stages(stages, others, run_ranks, tmp_path):
    """On 4 ranks: 2 stages are replicated, 4 are not."""
    giver, taker = (Course(f"local:stages={count}", MLP, steps=2) for count in (stages, others))
    told = run_ranks(hand_over, 4, giver, taker, tmp_path)
    for _, (given, taken), weights in told:
        assert_identical(taken, given)
        assert weights.keys() == given.keys()
    assert any(new for new, *_ in told)


def take_up_readout(folder):
    step, batches = step_of(Course("local:chunks=2,head=mirror", UNTIED))
    train_once(step, batches, 0)
    dcp.save(step.state_dict(), checkpoint_id=folder)
    other, _ = step_of(Course("local:chunks=2,head=readout", UNTIED))
    load_step(other, folder)
    trained = whole_weights(step)["head.weight"]
    return trained, other.blocks[0].state["head.weight"]


def test_takes_up_the_readout_when_the_checkpoint_has_other_heads(run_ranks, tmp_path):
    trained, copied = run_ranks(take_up_readout, 2, tmp_path)[0]
    assert torch.equal(trained, copied)


def take_from_single(folder):
    single, batches = prepare(Course("data", GPT))
    train_once(single, batches, 0)
    dcp.save(single.state_dict(), checkpoint_id=folder)
    step, _ = step_of(Course("local", GPT))
    load_step(step, folder)
    return whole_weights(single), whole_weights(step)


def test_takes_over_the_weights_of_other_strategies(run_ranks, tmp_path):
    for given, taken in run_ranks(take_from_single, 2, tmp_path):
        assert_identical(taken, given)


def get_out_of_step():
    step, batches = step_of(Course("local", MLP))
    batch = batches.rows(0, step.rows(BATCH))
    told = ""
    if dist.get_rank() == 0:
        step(batch)
    else:
        with pytest.raises(RuntimeError) as caught:
            step.evaluate(batch)
        told = str(caught.value)
    # What the other has sent besides may arrive for nobody, and then the connection serves for nothing more.
    part()
    return told


def test_stages_that_do_different_things_say_so(run_ranks):
    assert "this one is to evaluate" in run_ranks(get_out_of_step, 2)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("chunks=2", "2 blocks are too few for 4 ranks"),
        ("queue=0", "queue is 0"),
        ("variant=greedy,chunks=4", "takes no chunks"),
        ("overlap=3", "needs variant=overlap"),
        ("stages=3", "does not divide"),
    ],
)
def test_refuses_what_cannot_work(options, words):
    with pytest.raises(StrategyError, match=words):
        parse_strategy(f"local:{options}").check(world_size=4, global_batch=8, accumulate=1)


def fail_to_set_up(strategy, model):
    with pytest.raises(StrategyError) as caught:
        step_of(Course(strategy, model))
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "model", "words"),
    [
        ("head=conv", MLP, "needs feature maps"),
        ("head=readout", MLP, "is for language models"),
        ("variant=greedy", "mlp:size=tiny,layers=1", "too few for 2 ranks"),
    ],
)
def test_says_why_a_head_does_not_fit(options, model, words, run_ranks):
    for said in run_ranks(fail_to_set_up, 2, f"local:{options}", model):
        assert words in said
