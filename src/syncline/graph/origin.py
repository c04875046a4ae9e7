"""Where an op comes from: the module that was called, and the line of the user's code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from syncline.graph.opgraph import Source

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ')
_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
"""Code that users cannot change: torch, and Syncline but for its models."""
_MODELS = str(Path(__file__).parent.parent / "workloads" / "models")


@dataclass(frozen=True, slots=True)
class Origin:
    """A module's path and a line."""

    module: str = ""
    source: Source | None = None


def is_users(file: str) -> bool:
    """Whether a file holds the user's code (or a built-in model's) rather than torch's or Syncline's."""
    return file.startswith(_MODELS) or not file.startswith((*_OWN, "<"))


@lru_cache(maxsize=8192)
def source_of(stack_trace: str) -> Source | None:
    """The innermost line of the user's code in a stack trace's text."""
    frames = _FRAME.findall(stack_trace)
    for file, line in reversed(frames):
        if is_users(file):
            return Source(file, int(line))
    return None


@dataclass(frozen=True, slots=True)
class Wrapping:
    """How the exported module wraps the model: as the attribute `prefix`, itself called `name`."""

    prefix: str = ""
    name: str = ""

    def path(self, path: str) -> str:
        """A path in the exported module as one in the model; what is outside of it gets the name."""
        if not self.prefix:
            return path
        if path == self.prefix:
            return ""
        inner = path.removeprefix(f"{self.prefix}.")
        return inner if inner != path else self.name

    def tensor(self, name: str) -> str:
        """The name of a tensor of the exported module, in the model."""
        return name.removeprefix(f"{self.prefix}.") if self.prefix else name


def origin_of(meta: Mapping[str, Any], wrapping: Wrapping) -> Origin:
    """Where a node comes from."""
    stack = meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return Origin(wrapping.path(path), source_of(meta.get("stack_trace") or ""))
