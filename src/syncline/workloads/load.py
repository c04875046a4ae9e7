"""From what the user names to something that can be trained: model, loss, optimizer and data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import nn

from syncline.errors import ConfigError, ModelError, unknown_name
from syncline.workloads.calling import ComputeLoss, PlainCall, loss_function
from syncline.workloads.data.registry import BYTES, check_data, load_data
from syncline.workloads.deferred.building import Built, build_deferred, move_real_tensors
from syncline.workloads.models.registry import BUILTIN_MODELS, is_builtin, parse_model
from syncline.workloads.own import find_function, make_workload
from syncline.workloads.own_data import DatasetSamples, is_map_style
from syncline.workloads.pretrained import is_pretrained, prepare_pretrained, pretrained_input
from syncline.workloads.randomness import seeded
from syncline.workloads.workload import Batch, Data, InputSpec, OptimizerFactory, Samples, Workload


class InputTable(Protocol):
    """The table `[input]` of a file of settings."""

    @property
    def kind(self) -> Any:
        """One of the kinds of `InputSpec`."""
        ...

    @property
    def shape(self) -> Sequence[int]:
        """Shape of one sample without the batch dim."""
        ...

    @property
    def classes(self) -> int:
        """How many classes, or the size of the vocabulary."""
        ...


@dataclass(frozen=True, kw_only=True)
class LoadedWorkload:
    """A workload that is ready to be built; nothing heavy happens until it is asked for."""

    name: str
    """As the user wrote it."""
    compute_loss: ComputeLoss
    seed: int
    input: InputSpec | None = None
    """What the model takes, where that is known."""
    optimizer: OptimizerFactory | None = None
    """The user's own, if any."""
    data_spec: str | None = None
    """The data set to train on; None when the workload brings its own."""
    own_batches: Any = None
    """The user's own data set, iterable of batches, or function that makes one."""
    own_evaluation: Any = None
    """The user's own data set for evaluation."""
    make_model: Callable[[torch.device], nn.Module]
    make_deferred: Callable[[], Built[nn.Module]] | None = None
    """Makes the model without its large weights, where `make_model` has made something already."""

    def build_model(self, device: torch.device | str = "cpu") -> nn.Module:
        """The model with weights from the seed, the same each time. On `meta` it has none."""
        device = torch.device(device)
        with seeded(self.seed):
            return self.make_model(device).to(device)

    def build_deferred(self, device: torch.device | str = "cpu") -> Built[nn.Module]:
        """The same model with its large weights still to be made, part by part; the rest is on the device."""
        if self.make_deferred is not None:
            built = self.make_deferred()
        else:
            make = functools.partial(self.make_model, torch.device("cpu"))
            built = build_deferred(make, lambda model: model, seed=self.seed)
        move_real_tensors(built.made, torch.device(device))
        return built

    @cached_property
    def data(self) -> Data | None:
        """Samples to train and to evaluate on; None when the user gives whole batches."""
        if self.data_spec is not None and self.input is not None:
            return load_data(self.data_spec, self.input, seed=self.seed)
        if not is_map_style(self.own_batches):
            return None
        train = DatasetSamples(self.own_batches, self.name)
        return Data(name=self.name, train=train, evaluation=self._own_evaluation)

    @property
    def batches(self) -> Iterable[Batch] | Callable[[], Iterable[Batch]] | None:
        """Whole global batches of the user's own, one after the other, or what makes them."""
        return None if self.data_spec is not None or is_map_style(self.own_batches) else self.own_batches

    @property
    def evaluation(self) -> Samples | None:
        """Samples to evaluate on, if there are any."""
        return self.data.evaluation if self.data is not None else self._own_evaluation

    @cached_property
    def _own_evaluation(self) -> Samples | None:
        return None if self.own_evaluation is None else DatasetSamples(self.own_evaluation, self.name)


def load_workload(
    text: str,
    *,
    data: str | None = None,
    seed: int = 0,
    input: InputTable | None = None,
    device: torch.device | str = "cpu",
    deferring: bool = False,
) -> LoadedWorkload:
    """Find what the user names, and check that it can be trained.

    Args:
        text: A built-in model, `name:key=value,...`, or `package.module:function`.
        data: The data set to train on; by default the user's own batches, or what fits the model.
        seed: Of the weights and of synthetic data.
        input: What the model takes, where the model does not say it or another is wanted.
        device: Where the user's function makes its model first. `meta` keeps a huge one off the machine.
        deferring: Whether the user's function makes its model without large weights at first.
    """
    wanted = (
        None if input is None else InputSpec(kind=input.kind, shape=tuple(input.shape), classes=input.classes)
    )
    if is_builtin(text):
        return _load_builtin(text, data, seed, wanted)
    if ":" not in text:
        known = unknown_name("built-in model", text, BUILTIN_MODELS)
        raise ModelError(f"{known}\nA model of your own is given as package.module:function.")
    return _load_own(text, data, seed, wanted, torch.device(device), deferring=deferring)


def _load_builtin(text: str, data: str | None, seed: int, input: InputSpec | None) -> LoadedWorkload:
    spec = parse_model(text)
    taken, data = input or spec.input, data or spec.default_data
    check_data(data, taken)
    return LoadedWorkload(
        name=text,
        compute_loss=ComputeLoss(PlainCall(), text),
        seed=seed,
        input=taken,
        data_spec=data,
        # Weights come from the CPU's random numbers, so that they are the same on every device.
        make_model=lambda device: spec.build(device if device.type == "meta" else "cpu"),
    )


def _load_own(
    text: str,
    data: str | None,
    seed: int,
    input: InputSpec | None,
    device: torch.device,
    *,
    deferring: bool,
) -> LoadedWorkload:
    factory = _OwnModel(find_function(text), text, seed)
    workload = factory.make_first(device, deferring=deferring)
    taken = input or workload.input
    if taken is None and is_pretrained(workload.model):
        taken = pretrained_input(workload.model)
    chosen = data if data is not None or workload.batches is not None else _default_data(text, taken)
    if chosen is not None:
        if taken is None:
            raise _no_input(text, chosen)
        check_data(chosen, taken)
    return LoadedWorkload(
        name=text,
        compute_loss=loss_function(workload),
        seed=seed,
        input=taken,
        optimizer=workload.optimizer,
        data_spec=chosen,
        own_batches=workload.batches,
        own_evaluation=workload.evaluation,
        make_model=factory,
        make_deferred=factory.make_deferred,
    )


class _OwnModel:
    """Makes the user's model. The first one, made to learn what it is, is handed out, not made twice."""

    def __init__(self, function: Callable[[], Any], text: str, seed: int) -> None:
        self._function = function
        self._text = text
        self._seed = seed
        self._first: Built[Workload] | None = None
        self._first_device = torch.device("cpu")

    def make_first(self, device: torch.device, *, deferring: bool) -> Workload:
        if deferring:
            self._first = self._defer()
        else:
            with seeded(self._seed):
                self._first = Built(self._make(device))
        self._first_device = device
        return self._first.made

    def __call__(self, device: torch.device) -> nn.Module:
        first, self._first = self._first, None
        same_place = (self._first_device.type == "meta") == (device.type == "meta")
        if first is not None and same_place and not first.weights:
            return first.made.model
        return self._make(device).model

    def make_deferred(self) -> Built[nn.Module]:
        first, self._first = self._first, None
        built = first or self._defer()
        return Built(built.made.model, built.weights)

    def _defer(self) -> Built[Workload]:
        cpu = torch.device("cpu")
        return build_deferred(lambda: self._make(cpu), lambda made: made.model, seed=self._seed)

    def _make(self, device: torch.device) -> Workload:
        workload = make_workload(self._function, self._text, device)
        if is_pretrained(workload.model):
            prepare_pretrained(workload.model)
        return workload


def _default_data(text: str, input: InputSpec | None) -> str:
    if input is None:
        raise _no_input(text, None)
    is_text = input.kind in ("tokens", "token-pairs") and input.classes >= BYTES
    return "stdlib-text" if is_text else "synthetic"


def _no_input(text: str, data: str | None) -> ConfigError:
    asked = f"The data '{data}' takes its shape from the model" if data else "There is no data"
    return ConfigError(
        f"{asked}, but nothing says what {text} takes.\n"
        "Return a Workload with batches or with an InputSpec as input, or write into the file that you give "
        'with --config:\n\n[input]\nkind = "image"  # or features, tokens, token-pairs\n'
        "shape = [3, 32, 32]  # of one sample\nclasses = 10  # for tokens, the vocabulary"
    )
