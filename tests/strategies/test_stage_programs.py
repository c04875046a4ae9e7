"""Stages run what the model runs: the same loss, gradients and statistics to the last bit, however cut."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from syncline.cluster.presets import cluster_from
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import Rank, current_rank
from syncline.planning.stages import balance, candidates, segment_times
from syncline.strategies.protocol import Job
from syncline.strategies.registry import parse_strategy
from syncline.strategies.stages.blueprint import Blueprint
from syncline.strategies.stages.holding import Stage, holders, keep_only, model_state
from syncline.workloads.batch import list_tensors
from syncline.workloads.calling import loss_function
from syncline.workloads.load import load_workload
from syncline.workloads.workload import Workload

BUILT_IN = [
    "gpt2-tiny:layers=2,width=32,heads=2,seq=16,positions=16,dropout=0.1",
    "resnet110:size=tiny,depth=8",
    "transformer:size=tiny,width=32,hidden=64,seq=8,dropout=0.1",
]


def built_in(name: str) -> tuple[nn.Module, Any, Any]:
    workload = load_workload(name)
    assert workload.data is not None
    return workload.build_model(), workload.compute_loss, workload.data.train.rows(np.arange(4))


def pretrained(kind: str) -> tuple[nn.Module, Any, Any]:
    transformers = pytest.importorskip("transformers")
    small: dict[str, Any] = {"vocab_size": 50}
    if kind == "GPT2LMHeadModel":
        small |= {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16}
        config = transformers.GPT2Config(**small)
    else:
        small |= {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        config = transformers.BertConfig(**small)
    model = getattr(transformers, kind)(config)
    model.config.use_cache = False
    ids = torch.randint(0, 50, (4, 9))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return model, loss_function(Workload(model=model)), batch


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((built_in, name) for name in BUILT_IN),
        (pretrained, "GPT2LMHeadModel"),
        (pretrained, "BertForMaskedLM"),
    ],
)
def test_stages_do_what_the_model_does(make, name):
    torch.manual_seed(0)
    model, compute_loss, batch = make(name)
    model.train()
    whole = copy.deepcopy(model)
    job = Job(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        compute_loss=compute_loss,
        rank=Rank(),
        device=torch.device("cpu"),
        example=batch,
    )
    blueprint = Blueprint(job, "pipeline")
    cutting = blueprint.cutting(4, training=True)
    points = candidates(cutting)
    found = balance(cutting, 3, segment_times(cutting, points, cluster_from("1x2").device))
    programs = blueprint.programs([point.name for point in found.points], 4, training=True)
    named = {f"batch_{place}": tensor for place, tensor in enumerate(list_tensors(batch))}
    torch.manual_seed(1)
    given: list[torch.Tensor] = []
    for program in programs:
        given = [Stage(program, model_state(model), recompute=False)(*given, **named)]
    torch.manual_seed(1)
    wanted = compute_loss(whole, batch)
    assert torch.equal(given[0], wanted)
    given[0].backward()
    wanted.backward()
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    assert all(one.grad is None or torch.equal(one.grad, other.grad) for one, other in pairs)
    assert sum(one.grad is not None for one in model.parameters()) > 3
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), whole.buffers(), strict=True))


def test_a_pretrained_model_learns_in_blocks_that_the_user_names():
    torch.manual_seed(0)
    model, compute_loss, batch = pretrained("GPT2LMHeadModel")
    job = Job(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        compute_loss=compute_loss,
        rank=Rank(),
        device=torch.device("cpu"),
        example=batch,
    )
    with process_group(job.device):
        step = parse_strategy("local:cuts=transformer.h.0").setup(job)
        losses = [step(batch).item() for _ in range(8)]
    assert step.notes[0] == "local: 2 blocks on 1 stage"
    assert "after transformer.h.0" in step.notes[1]
    assert losses[-1] < losses[0] - 0.3


def train_pretrained(strategy: str) -> list[float]:
    torch.manual_seed(0)
    model, compute_loss, batch = pretrained("GPT2LMHeadModel")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    job = Job(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        compute_loss=compute_loss,
        rank=current_rank(),
        device=torch.device("cpu"),
        example=batch,
    )
    step = parse_strategy(strategy).setup(job)
    return [step(batch).item() for _ in range(4)]


def test_a_pretrained_model_in_a_pipeline_equals_one_device(run_ranks):
    (wanted,) = run_ranks(train_pretrained, 1, "single")
    for losses in run_ranks(train_pretrained, 2, "pipeline:cuts=transformer.h.0"):
        assert losses == pytest.approx(wanted, rel=1e-5)


def test_a_rank_keeps_what_its_stages_use():
    model, compute_loss, batch = built_in(BUILT_IN[0])
    optimizer = torch.optim.AdamW(model.parameters())
    job = Job(
        model=model,
        optimizer=optimizer,
        compute_loss=compute_loss,
        rank=Rank(),
        device=torch.device("cpu"),
        example=batch,
    )
    blueprint = Blueprint(job, "pipeline")
    cuts = ["blocks.0/add_2"]
    modes = [blueprint.programs(cuts, 4, training=mode) for mode in (True, False)]
    held = holders(model, list(zip(*modes, strict=True)))
    assert held["tokens.weight"] == (0, 1)
    assert held["positions"] == (0,)
    keep_only(model, optimizer, [name for name, stages in held.items() if 1 in stages])
    names = [name for name, _ in model.named_parameters()]
    assert "positions" not in names
    assert {"tokens.weight", "norm.bias"} < set(names)
    assert len(optimizer.param_groups[0]["params"]) == len(names)
