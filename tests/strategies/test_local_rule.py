"""The learning rule of `local` by itself, in one process: what each loss reaches, and what it does not."""

from typing import Any

import pytest
import torch

from strategies.local_runs import GPT, MLP
from strategies.test_conformance import BATCH, Course, make_optimizer
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank
from syncline.strategies.local.block import Rule
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy
from syncline.training.batches import open_batches
from syncline.workloads.batch import list_tensors
from syncline.workloads.example import workload_batch
from syncline.workloads.load import load_workload

RESNET = "resnet110:size=tiny,depth=8,norm=group"


@pytest.fixture(autouse=True)
def _group():
    with process_group(torch.device("cpu")):
        yield


def build(course: Course) -> tuple[Any, Any]:
    """A step that has all blocks, and the batches."""
    torch.manual_seed(7)
    workload = load_workload(course.model, seed=3)
    model = workload.build_model()
    job = Job(
        model=model,
        optimizer=make_optimizer(course.optimizer, model),
        compute_loss=workload.compute_loss,
        rank=Rank(),
        device=torch.device("cpu"),
        options=course.options,
        example=workload_batch(workload, BATCH),
    )
    return parse_strategy(course.strategy).setup(job), open_batches(workload, BATCH, 3)


def gradients(step):
    return {name: p.grad for name, p in step.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", [MLP, "gpt2-tiny:layers=2,width=32,heads=2,seq=16,positions=16", RESNET])
def test_one_chunk_is_backpropagation_bit_for_bit(model):
    results = []
    for strategy in ("single", "local:chunks=1"):
        step, batches = build(Course(strategy, model))
        losses = [step(batches.rows(number)).item() for number in range(3)]
        losses.append(step.evaluate(batches.rows(0)).item())
        results.append((losses, dict(step.model.named_parameters())))
    (losses, weights), (local_losses, local_weights) = results
    assert losses == local_losses
    assert all(torch.equal(weight, local_weights[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ("chunks=3", MLP),
        ("chunks=3,head=mlp", RESNET),
        ("chunks=2,head=conv", RESNET),
        ("variant=greedy", GPT),
        ("chunks=2,head=readout", GPT),
    ],
)
def test_a_loss_reaches_its_own_block_only(options, model):
    step, batches = build(Course(f"local:{options}", model))
    assert len(step.blocks) > 1
    batch = list_tensors(batches.rows(0))
    rule = Rule(blocks=len(step.blocks))
    runs = rule.forward(step.blocks, None, batch)
    everything = [p for block in step.blocks for p in block.owned]
    for run in runs:
        loss = run.block.loss(run.out, batch, training=True)
        found = torch.autograd.grad(loss, everything, retain_graph=True, allow_unused=True)
        reached = {id(p) for p, one in zip(everything, found, strict=True) if one is not None}
        assert reached <= {id(p) for p in run.block.owned}
        assert any(one is not None and one.abs().sum() > 0 for one in found)
    owned = [id(p) for p in everything]
    assert len(owned) == len(set(owned))
    assert {id(p) for p in step.model.parameters()} <= set(owned)


def summed_losses(step, batch):
    """The sum of all losses with nothing cut off, for autograd to differentiate."""
    total, activation = torch.zeros(()), None
    for block in step.blocks:
        activation = block.run(activation, batch, training=True)
        total = total + block.loss(activation, batch, training=True)
    return total


@pytest.mark.parametrize("model", [MLP, RESNET])
def test_an_overlap_over_all_blocks_is_backpropagation_of_the_summed_losses(model):
    step, batches = build(Course("local:variant=overlap,chunks=4,overlap=4", model))
    batch = list_tensors(batches.rows(0))
    rule = Rule(blocks=4, overlap=4)
    rule.learn(rule.forward(step.blocks, None, batch), batch, [])
    parameters = [p for block in step.blocks for p in block.owned]
    wanted = torch.autograd.grad(summed_losses(step, batch), parameters)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_an_overlap_of_two_reaches_one_block_back_and_no_further():
    step, batches = build(Course("local:variant=overlap,chunks=3", MLP))
    batch = list_tensors(batches.rows(0))
    first, second, last = step.blocks
    rule = Rule(blocks=3, overlap=2)
    runs = rule.forward(step.blocks, None, batch)
    rule.learn(runs, batch, [])
    own = first.run(None, batch, training=True)
    after = second.run(own, batch, training=True)
    wanted = first.loss(own, batch, training=True) + second.loss(after, batch, training=True)
    found = torch.autograd.grad(wanted, first.owned)
    for parameter, gradient in zip(first.owned, found, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    whole = torch.autograd.grad(summed_losses(step, batch), first.owned)
    assert any(
        not torch.allclose(parameter.grad, one, rtol=1e-3)
        for parameter, one in zip(first.owned, whole, strict=True)
    )
    assert last.is_last


def test_the_mean_of_losses_is_a_share_of_their_sum():
    grads = []
    for combine in ("sum", "mean"):
        step, batches = build(Course("local:variant=overlap,chunks=2", MLP))
        batch = list_tensors(batches.rows(0))
        rule = Rule(blocks=2, overlap=2, combine=combine)
        rule.learn(rule.forward(step.blocks, None, batch), batch, [])
        grads.append([p.grad for p in step.model.parameters()])
    first_sum, first_mean = grads[0][0], grads[1][0]
    torch.testing.assert_close(first_mean * 2, first_sum)
    torch.testing.assert_close(grads[0][-1], grads[1][-1])


def test_tied_weights_belong_to_the_first_block():
    step, _ = build(Course("local:chunks=2", GPT))
    first, last = step.blocks
    tied = step.model.get_parameter("tokens.weight")
    assert any(one is tied for one in first.owned)
    assert not last.state["tokens.weight"].requires_grad
    assert last.state["tokens.weight"].data_ptr() == tied.data_ptr()


@pytest.mark.parametrize(
    ("options", "model", "kind", "why"),
    [
        ("", "gpt2-tiny:layers=2,seq=16", "mirror", "language model"),
        ("", "gpt2-tiny:layers=2,vocab=20000,seq=16", "readout", "vocabulary projection"),
        ("", RESNET, "conv", "the fewest layers"),
        ("head-cap=9", RESNET, "mirror", "images"),
        ("head=linear", MLP, "linear", "as asked"),
    ],
)
def test_the_head_is_chosen_by_kind_of_model_and_says_why(options, model, kind, why):
    step, _ = build(Course(f"local:chunks=2,{options}".rstrip(","), model))
    (said,) = step.notes[1:]
    assert said.startswith(f"head {kind} (")
    assert why in said
    assert said.rstrip().endswith("%")


def test_a_mirrored_head_stays_under_its_cap():
    shares = []
    for cap in (0.0, 0.4, 2.0):
        step, _ = build(Course(f"local:chunks=2,head=mirror,head-cap={cap}", "gpt2-tiny:layers=6,seq=16"))
        shares.append(float(step.notes[1].rpartition(" ")[2].rstrip("%")) / 100)
    cheapest, middle, largest = shares
    assert cheapest < middle <= 0.4
    assert middle < largest <= 2.0


def test_learns():
    step, batches = build(Course("local:chunks=2", "gpt2-tiny:layers=2,width=32,heads=2,seq=32,positions=32"))
    losses = [step(batches.rows(number)).item() for number in range(60)]
    assert sum(losses[-10:]) / 10 < 0.75 * losses[0]
