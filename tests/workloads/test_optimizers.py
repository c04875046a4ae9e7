"""Adam by fused kernels: the same updates, however things lie in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim

from syncline.workloads.optimizers import FusedAdam, FusedAdamW, make_adam

Laying = Callable[[Tensor], Tensor]


def as_it_is(values: Tensor) -> Tensor:
    return values.clone()


def backwards(values: Tensor) -> Tensor:
    """The same numbers with the last dimension outermost in memory."""
    return values.movedim(-1, 0).contiguous().movedim(0, -1)


def with_gaps(values: Tensor) -> Tensor:
    return torch.stack([values, values], dim=-1)[..., 0]


def train(optimizer: optim.Optimizer, parameters: list[nn.Parameter], gradient: Laying) -> None:
    torch.manual_seed(1)
    for _ in range(4):
        for parameter in parameters:
            parameter.grad = gradient(torch.randn(parameter.shape))
        optimizer.step()


def fresh(parameter: Laying) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(parameter(torch.randn(shape))) for shape in ((6, 4), (8, 3, 5, 5), (7,))]


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("gradient", [as_it_is, backwards, with_gaps])
@pytest.mark.parametrize("parameter", [as_it_is, backwards, with_gaps])
def test_fused_kernels_do_what_plain_ones_do(parameter, gradient, decoupled):
    plain, fused = fresh(parameter), fresh(parameter)
    kind = optim.AdamW if decoupled else optim.Adam
    train(kind(plain, lr=0.1, weight_decay=0.1, fused=False), plain, gradient)
    optimizer = make_adam(fused, lr=0.1, weight_decay=0.1, decoupled=decoupled)
    train(optimizer, fused, gradient)
    # One of its parameters is a vector, which has gaps only where the others have.
    assert optimizer.param_groups[0]["fused"] is (parameter is not with_gaps)
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_state_that_lies_otherwise_is_laid_alike():
    plain, fused = fresh(as_it_is), fresh(as_it_is)
    optimizers = [optim.AdamW(plain, lr=0.1), make_adam(fused, lr=0.1, weight_decay=0.01)]
    for optimizer, parameters in zip(optimizers, (plain, fused), strict=True):
        train(optimizer, parameters, as_it_is)
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = backwards(state[name])
        train(optimizer, parameters, as_it_is)
    for one, other in zip(plain, fused, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_parameters_without_a_kernel_get_plain_optimizers():
    for odd in (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, device="meta")):
        optimizer = make_adam([nn.Parameter(torch.zeros(2)), nn.Parameter(odd)], lr=0.1)
        assert type(optimizer) is optim.AdamW
    assert type(make_adam([nn.Parameter(torch.zeros(2))], lr=0.1)) is FusedAdamW
    assert type(make_adam([nn.Parameter(torch.zeros(2))], lr=0.1, decoupled=False)) is FusedAdam


def test_they_are_made_as_torch_makes_its_own():
    """Strategies make further optimizers of the same class by the names of its arguments."""
    assert inspect.signature(FusedAdamW) == inspect.signature(optim.AdamW)
    assert inspect.signature(FusedAdam) == inspect.signature(optim.Adam)
