"""A model that cannot be captured: the error names the user's line, the reason, and what to do."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from syncline.errors import CaptureError
from syncline.graph import capture, capture_training
from syncline.workloads.calling import ComputeLoss, PlainCall


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class DependsOnData(Broken):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if x.sum() > 0:  # here
            return x
        return -x


class ReadsItem(Broken):
    def forward(self, x: Tensor) -> Tensor:
        scale = self.linear(x).max().item()  # here
        return x * scale


class LoopsOnItem(Broken):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum())):  # here
            x = self.linear(x)
        return x


class ToNumpy(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.from_numpy(x.detach().numpy())  # here


class ToList(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * len(x[0].tolist()) * x[0, 0].tolist()  # here


class MasksRows(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[x[:, 0] > 0])  # here


class FindsNonzero(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.nonzero(x).sum()  # here


class MixesDevices(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.ones(4, device="meta")  # here


class WrongShape(Broken):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) @ x  # here


class Autocasts(Broken):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.linear(x)  # here


class Raises(Broken):
    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("not for you")  # here


class WritesThroughExpand(Broken):
    def forward(self, x: Tensor) -> Tensor:
        wide = self.linear(x)[:, :1].expand(-1, 4)
        wide[:, 0].add_(1)  # here
        return wide


BROKEN: dict[type[nn.Module], str] = {
    DependsOnData: "depends on the values of a tensor",
    ReadsItem: "Python number",
    LoopsOnItem: "value",
    ToNumpy: "numpy",
    ToList: "value",
    MasksRows: "depends on data",
    FindsNonzero: "depends on data",
    MixesDevices: "device",
    WrongShape: "reduction dim",
    Autocasts: "autocast",
    Raises: "not for you",
    WritesThroughExpand: "expand",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_the_error_names_line_and_reason(broken: type[nn.Module]) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(broken(), (torch.randn(3, 4),))
    message = str(caught.value)
    assert f"test_capture_failures.py:{_marked_line(broken)}" in message, message
    assert BROKEN[broken].lower() in message.lower(), message
    assert "\n" in message


def test_an_error_inside_the_explained_first_call_is_explained_as_a_capture() -> None:
    compute = ComputeLoss(PlainCall(), "broken")
    batch = (torch.randn(3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(CaptureError, match=f"test_capture_failures.py:{_marked_line(DependsOnData)}"):
        capture_training(DependsOnData(), compute, batch)


def test_a_model_that_cannot_be_copied_is_named() -> None:
    class Locked(Broken):
        def __init__(self) -> None:
            super().__init__()
            self.generator = (one for one in ())

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    with pytest.raises(CaptureError, match="Locked cannot be copied"):
        capture(Locked(), (torch.randn(3, 4),))


def test_writing_to_a_parameter_is_an_error() -> None:
    class Writes(Broken):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.linear.weight.mul_(0.9)
            return self.linear(x)

    with pytest.raises(CaptureError, match=r"linear\.weight"):
        capture(Writes(), (torch.randn(3, 4), torch.zeros(3, dtype=torch.long)), loss=cross_entropy)


def test_the_model_is_usable_after_a_failure() -> None:
    model = DependsOnData()
    with pytest.raises(CaptureError):
        capture(model, (torch.randn(3, 4),))
    assert model(torch.randn(3, 4)).shape == (3, 4)


def _marked_line(broken: type[nn.Module]) -> int:
    lines, first = inspect.getsourcelines(broken)
    return first + next(index for index, line in enumerate(lines) if "# here" in line)
