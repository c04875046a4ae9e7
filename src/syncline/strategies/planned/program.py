"""The captured graph as a program of this rank: ops on local tensors, and what happens between them.

The program is one `torch.fx` graph, or, where blocks are recomputed, one for each run of ops of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint

from syncline.strategies.planned.ops import Recomputing

Key = tuple[str, int]
"""A value of the program: `made`, `shared`, `weight`, `buffer`, `input` or `constant`, and a tensor's id."""


@dataclass(frozen=True)
class Segment:
    """A run of ops."""

    run: Callable[..., tuple[Tensor, ...]]
    takes: tuple[Key, ...]
    gives: tuple[Key, ...]
    recomputed: bool
    lets_go: tuple[Key, ...] = ()
    """Values that nothing needs after it."""


class Program:
    """Runs the segments one after another."""

    def __init__(
        self,
        segments: Sequence[Segment],
        constants: Mapping[Key, Tensor],
        loss: Key,
        recomputing: Recomputing,
    ) -> None:
        self._segments = segments
        self._constants = constants
        self._loss = loss
        self._recomputing = recomputing

    def __call__(self, values: dict[Key, Tensor]) -> Tensor:
        """The loss as this rank has it.

        Args:
            values: Weights, buffers and inputs; emptied on the way, so that nothing is kept too long.
        """
        values.update(self._constants)
        for segment in self._segments:
            taken = [values[key] for key in segment.takes]
            for key in segment.lets_go:
                values.pop(key, None)
            if segment.recomputed and torch.is_grad_enabled():
                given = self._run_and_forget(segment, taken)
            else:
                given = segment.run(*taken)
            del taken
            values.update(zip(segment.gives, given, strict=True))
        return values[self._loss]

    def _run_and_forget(self, segment: Segment, taken: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # Buffers may change before backward, which refuses changed arguments: it gets them otherwise.
        buffers = [one if key[0] == "buffer" else None for key, one in zip(segment.takes, taken, strict=True)]

        def run(*rest: Tensor) -> tuple[Tensor, ...]:
            others = iter(rest)
            return segment.run(*(next(others) if one is None else one for one in buffers))

        return checkpoint(
            run,
            *(one for one, buffer in zip(taken, buffers, strict=True) if buffer is None),
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=self._contexts,
        )

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), self._recompute()

    @contextmanager
    def _recompute(self) -> Iterator[None]:
        self._recomputing.now = True
        try:
            yield
        finally:
            self._recomputing.now = False


def compile_module(module: fx.GraphModule, *, optimise: bool) -> Callable[..., tuple[Tensor, ...]]:
    """What is called for a segment: its Python code, or what `torch.compile` makes of it."""
    if not optimise:
        return module.forward
    for child in module.children():
        # What sends, seeds, or gives memory back is no part of what can be fused.
        child.forward = torch.compiler.disable(child.forward)
    return torch.compile(module)
