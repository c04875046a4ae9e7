"""Results that take long, made by one of the test workers for all of them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

T = TypeVar("T")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What `make` returns for a folder of its own; the other workers wait for it and share the folder."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make(factory.mktemp(name))
    shared = factory.getbasetemp().parent
    result = shared / f"{name}.pickle"
    with FileLock(shared / f"{name}.lock"):
        if not result.exists():
            folder = shared / name
            folder.mkdir()
            result.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(result.read_bytes())
