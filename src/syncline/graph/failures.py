"""Explains why a model could not be exported: the user's line, the reason, and what to do."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from torch import nn

from syncline.errors import CaptureError, SynclineError
from syncline.graph.opgraph import Source
from syncline.graph.origin import is_users

_ADVICE = (
    (
        ("data-dependent", "datadependent", "guardondatadependent", "unbacked", "could not guard"),
        "what it does next depends on the values of a tensor, which are not known before training",
        "Express the choice with tensors (torch.where, masks), or decide it from shapes and settings.",
    ),
    (
        ("_local_scalar_dense", "item()", "tolist", ".numpy()", "can't call numpy"),
        "it reads the value of a tensor, which is not known before training",
        "Keep it a tensor: leave out item(), int(), float(), tolist() and numpy().",
    ),
    (
        ("device",),
        "it mixes tensors of different devices",
        "Make new tensors on the device of the input: torch.arange(n, device=x.device).",
    ),
)


_GENERAL = "If the model runs on such a batch otherwise, rewrite that line with plain tensor operations."


def explain(error: Exception, model: str) -> CaptureError:
    """The error to show instead of one that came out of `torch.export`."""
    cause = _root(error)
    if isinstance(cause, CaptureError):
        return cause
    source = users_line(cause.__traceback__) or users_line(error.__traceback__)
    words = f"{type(cause).__name__}: {_first_lines(str(cause))}"
    reason, advice = "it fails when traced", _GENERAL
    for signs, why, what in _ADVICE:
        if any(sign in words.lower() for sign in signs):
            reason, advice = why, what
            break
    place = f"{source}" if source else f"the model {model}"
    return CaptureError(
        f"The model {model} cannot be captured: at {place} {reason}.\n{words}\n{advice}\n"
        "Without a graph it can still be trained with every strategy that needs none: data, sharded."
    )


@contextmanager
def explained(module: nn.Module, model: str) -> Generator[None, None, None]:
    """Within, what the module's forward pass raises is explained where it happens.

    Torch would print the graph so far, and more, if it saw the error itself.
    """
    original = type(module)

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return original.forward(self, *args, **kwargs)
        except Exception as error:
            raise explain(error, model) from error

    chatter = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    silent = chatter.disabled
    names = {"forward": forward, "__module__": original.__module__, "__qualname__": original.__qualname__}
    module.__class__ = type(original.__name__, (original,), names)
    chatter.disabled = True
    try:
        yield
    finally:
        module.__class__ = original
        chatter.disabled = silent


def users_line(trace: TracebackType | None) -> Source | None:
    """The innermost line of the user's code that an exception passed through."""
    frames = traceback.extract_tb(trace)
    for frame in reversed(frames):
        if is_users(frame.filename):
            return Source(frame.filename, frame.lineno or 0)
    return None


def _root(error: BaseException) -> BaseException:
    """The error behind errors that only pass it on."""
    while error.__cause__ is not None and isinstance(error, SynclineError):
        error = error.__cause__
    return error


def _first_lines(text: str, limit: int = 3) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:limit])[:400]
