"""Calling models and computing losses, and what is said when that cannot work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from syncline.errors import ModelError
from syncline.workloads.calling import classify, loss_function
from syncline.workloads.workload import Workload


class Returns(nn.Module):
    """Gives what a function of its inputs and its one weight gives."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.function = function

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        return self.function(self.weight, *inputs, **named)


def logits(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def labels(*shape: int, classes: int = 5) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(0))


def test_classes_are_last_for_tokens_and_second_for_pictures() -> None:
    tokens, targets = logits(2, 3, 5), labels(2, 3)
    assert classify(tokens, targets).allclose(cross_entropy(tokens.transpose(1, 2), targets))
    assert classify(logits(4, 5), labels(4)).allclose(cross_entropy(logits(4, 5), labels(4)))
    pixels = logits(2, 5, 4, 4)
    assert classify(pixels, labels(2, 4, 4)).allclose(cross_entropy(pixels, labels(2, 4, 4)))
    soft = logits(4, 5).softmax(1)
    assert classify(logits(4, 5), soft).allclose(cross_entropy(logits(4, 5), soft))


def test_inputs_come_in_their_places() -> None:
    one = loss_function(Workload(model=nn.Linear(3, 5)))
    model = nn.Linear(3, 5)
    batch = (logits(4, 3), labels(4))
    assert one(model, batch).allclose(cross_entropy(model(batch[0]), batch[1]))
    two = Returns(lambda weight, source, target: weight * (source + target))
    compute = loss_function(Workload(model=two))
    assert compute(two, ((logits(4, 5), logits(4, 5)), labels(4))).requires_grad


def test_a_mapping_goes_in_by_name_without_its_targets() -> None:
    model = Returns(lambda weight, *, left, right: weight * (left - right))
    compute = loss_function(Workload(model=model))
    batch = {"left": logits(4, 5), "right": torch.ones(4, 5), "labels": labels(4)}
    assert compute(model, batch).allclose(cross_entropy(logits(4, 5) - 1, labels(4)))
    with pytest.raises(ModelError, match="keys left, right, and none of them is 'labels'"):
        loss_function(Workload(model=model))(model, {"left": logits(4, 5), "right": logits(4, 5)})


def test_own_loss() -> None:
    model = nn.Linear(3, 2)
    compute = loss_function(Workload(model=model, loss=mse_loss))
    batch = (logits(4, 3), logits(4, 2))
    assert compute(model, batch).allclose(mse_loss(model(batch[0]), batch[1]))


@pytest.mark.parametrize(
    ("function", "loss", "message"),
    [
        (
            lambda w, x: x @ torch.ones(7, 5),
            None,
            r"cannot take the batch \(float32 \(4, 3\), int64 \(4,\)\).*Runtime",
        ),
        (lambda w: w, None, "TypeError.*positional argument"),
        (
            lambda w, x: {"logits": w * x},
            None,
            r"gives \{logits: float32 \(4, 3\)\}, not a tensor.*Return the logits",
        ),
        (lambda w, x: w * x[:2], None, r"logits of shape \(2, 3\) for targets of shape \(4,\)"),
        (lambda w, x: w * x[:, :2], None, r"The loss of Returns cannot be computed.*out of bounds"),
        (
            lambda w, x: w * x,
            lambda out, t: out,
            r"loss of Returns has the shape \(4, 3\); it must be a scalar.*mean",
        ),
        (lambda w, x: w * x, lambda out, t: 1.5, "loss of Returns is a float; it must be a scalar tensor"),
        (lambda w, x: w * x, lambda out, t: t.sum(), r"of type int64 \(\)"),
        (lambda w, x: w.detach() * x, None, "does not depend on any parameter"),
        (lambda w, x: w * x, lambda out, t: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_mistakes_of_the_first_call(function: Any, loss: Any, message: str) -> None:
    model = Returns(function)
    batch = (logits(4, 3), torch.arange(4) % 3)
    with pytest.raises(ModelError, match=f"(?s){message}"):
        loss_function(Workload(model=model, loss=loss))(model, batch)


def test_the_original_error_is_kept() -> None:
    with pytest.raises(ModelError) as caught:
        loss_function(Workload(model=nn.Linear(7, 2)))(nn.Linear(7, 2), (logits(4, 3), labels(4)))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failed_check_is_made_again() -> None:
    compute = loss_function(Workload(model=nn.Linear(3, 5)))
    for _ in range(2):
        with pytest.raises(ModelError):
            compute(nn.Linear(3, 5), (logits(4, 7), labels(4)))
    compute(nn.Linear(3, 5), (logits(4, 3), labels(4)))


def test_later_calls_are_not_wrapped() -> None:
    compute = loss_function(Workload(model=nn.Linear(3, 5)))
    compute(nn.Linear(3, 5), (logits(4, 3), labels(4)))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compute(nn.Linear(3, 5), (logits(4, 7), labels(4)))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), torch.distributed.DistError("lost")])
def test_what_is_not_the_models_fault_stays_as_it_is(error: Exception) -> None:
    def fail(weight: Tensor, inputs: Tensor) -> Tensor:
        raise error

    model = Returns(fail)
    with pytest.raises(type(error)):
        loss_function(Workload(model=model))(model, (logits(4, 3), labels(4)))


def test_evaluation_may_come_first() -> None:
    compute = loss_function(Workload(model=nn.Linear(3, 5)))
    with torch.no_grad():
        assert not compute(nn.Linear(3, 5), (logits(4, 3), labels(4))).requires_grad
