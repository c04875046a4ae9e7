"""The form of a batch as text: shapes and types, from which a batch without values can be made again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from syncline.workloads.workload import Batch

_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\]")


def write_form(batch: Batch) -> str:
    """The form as JSON such as `["int64[8, 64]", "int64[8]"]`; empty if the batch holds more than tensors."""
    try:
        return json.dumps(_form(batch))
    except TypeError:
        return ""


def read_form(text: str) -> Batch:
    """A batch of that form, on the meta device.

    Raises:
        ValueError: The text does not describe a batch.
    """
    return _batch(json.loads(text))


def _form(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping):
        return {str(key): _form(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_form(item) for item in value]
    raise TypeError(f"a batch with a {type(value).__name__} has no form")


def _batch(form: Any) -> Any:
    if isinstance(form, dict):
        return {key: _batch(item) for key, item in form.items()}
    if isinstance(form, list):
        return tuple(map(_batch, form))
    found = _TENSOR.fullmatch(form) if isinstance(form, str) else None
    dtype = getattr(torch, found[1], None) if found else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise ValueError(f"{form!r} is not a tensor such as int64[8, 64]")
    shape = [int(size) for size in found[2].split(",") if size.strip()]
    return torch.empty(shape, dtype=dtype, device="meta")
