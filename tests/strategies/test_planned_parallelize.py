"""`syncline.parallelize` with a plan of `syncline.plan`: nothing else has to be said."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import syncline
from syncline.errors import PlanningError
from syncline.planning.plan import Plan
from syncline.planning.plan_file import load_plan, save_plan
from syncline.workloads.batch_form import read_form, write_form

BATCH = 8


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 12, generator=random), torch.randn(BATCH, 4, generator=random)


def train(strategy: str | Plan) -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = syncline.parallelize(model, optimizer, nn.functional.mse_loss, strategy=strategy)
    losses = []
    for number in range(4):
        inputs, targets = batch_of(number)
        loss = step((inputs[step.rows(BATCH)], targets[step.rows(BATCH)]))
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    return losses


def refusal(plan: Plan) -> str:
    with pytest.raises(PlanningError) as caught:
        train(plan)
    return str(caught.value)


def test_a_plan_is_all_that_is_needed(run_ranks, tmp_path):
    plan = syncline.plan(make_model(), batch_of(0), loss_fn=nn.functional.mse_loss, cluster="1x2")
    assert plan.workload.example == '["float32[8, 12]", "float32[8, 4]"]'
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    wanted = run_ranks(train, 1, "single")[0]
    assert len(set(wanted)) == 4
    for losses in run_ranks(train, 2, plan):
        assert losses == pytest.approx(wanted, rel=1e-5)
    broken = replace(plan, workload=replace(plan.workload, example='["float33[8]"]'))
    assert "'float33[8]' is not a tensor such as int64[8, 64]" in run_ranks(refusal, 2, broken)[0]


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)),
        ((torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.bfloat16)), torch.zeros(())),
        {"input_ids": torch.zeros(4, 8, dtype=torch.long), "labels": torch.zeros(4, dtype=torch.bool)},
    ],
)
def test_a_form_is_read_back(batch):
    text = write_form(batch)
    assert write_form(read_form(text)) == text
    again = read_form(text)
    assert type(again) is type(batch)
    flat = list(again.values()) if isinstance(again, dict) else list(again)
    assert isinstance(flat[-1], Tensor)
    given = list(batch.values())[-1] if isinstance(batch, dict) else batch[-1]
    assert (flat[-1].shape, flat[-1].dtype, flat[-1].device.type) == (given.shape, given.dtype, "meta")


def test_what_is_no_tensor_has_no_form():
    assert write_form((torch.zeros(2), 3)) == ""  # pyrefly: ignore[bad-argument-type]
