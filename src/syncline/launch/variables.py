"""Environment variables that a launcher sets for its ranks, for as long as it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, and put everything back at the end."""
    before = dict(os.environ)
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def rank_variables(ranks: int, interface: str) -> dict[str, str]:
    """What ranks that share this machine need in their environment.

    Args:
        ranks: How many ranks share its cores.
        interface: The network interface that gloo shall use.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // ranks)), "GLOO_SOCKET_IFNAME": interface}


def cache_folder() -> Path:
    """Where this user's caches are: `XDG_CACHE_HOME`, or `~/.cache`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "syncline"


def threads_per_rank(ranks: int) -> int:
    """How many threads each of so many ranks on this machine computes with."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else int(rank_variables(ranks, "")["OMP_NUM_THREADS"])
