"""Environment variables that a launcher sets for its ranks, for as long as it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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
