"""Which rank holds which weights: each keeps those of its own stages and lets go of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from syncline.strategies.stages.program import StageProgram


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by all their names, the tensors themselves."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def holders(model: nn.Module, programs: Sequence[Iterable[StageProgram]]) -> dict[str, tuple[int, ...]]:
    """For each parameter and buffer the stages that use it; the first stage holds what none uses.

    Args:
        model: Whole.
        programs: For each stage, all that it will run.
    """
    used: dict[str, list[int]] = {}
    for stage, own in enumerate(programs):
        for name in dict.fromkeys(name for program in own for name in program.state_names):
            used.setdefault(name, []).append(stage)
    names = dict.fromkeys([*dict(model.named_parameters()), *dict(model.named_buffers())])
    return {name: tuple(used.get(name, (0,))) for name in names}


def keep_only(model: nn.Module, optimizer: torch.optim.Optimizer, names: Iterable[str]) -> None:
    """Let the model and the optimizer go of every tensor but those of these names; names stay as they are."""
    state = model_state(model)
    kept = {id(state[name]) for name in names}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in kept:
                module.register_parameter(name, None)
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            if id(buffer) not in kept:
                module.register_buffer(name, None)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in kept:
                optimizer.state.pop(parameter, None)
        group["params"] = [parameter for parameter in group["params"] if id(parameter) in kept]


class Stage(nn.Module):
    """One stage as a module: its own parameters, and a program that runs on them."""

    def __init__(self, program: StageProgram, state: Mapping[str, Tensor], *, recompute: bool) -> None:
        super().__init__()
        self._program = program
        self._recompute = recompute
        self._state = {name: state[name] for name in program.state_names}
        for name, tensor in self._state.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name.replace(".", "/"), tensor)

    def forward(self, *activation: Tensor, **batch: Tensor) -> Tensor:
        """What goes out. The batch is given tensor by tensor, in order."""
        if self._recompute:
            return torch.utils.checkpoint.checkpoint(self._run, activation, batch, use_reentrant=False)
        return self._run(activation, batch)

    def _run(self, activation: tuple[Tensor, ...], batch: Mapping[str, Tensor]) -> Tensor:
        given = activation[0] if activation else None
        return self._program(self._state, list(batch.values()), given)
