"""Starting all ranks again after one failed.

Torch's launcher can do so by itself, yet it keeps the store of the first start, where gloo then finds
the addresses of ranks that are dead. So every start gets a launcher of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from syncline.errors import RankFailedError


def with_restarts(start: Callable[[int], None], max_restarts: int) -> None:
    """Call `start` with 0, and with 1, 2, ... up to `max_restarts` while ranks fail.

    Errors that the user can act upon are final: they would only happen again.
    """
    for restart in range(max_restarts):
        try:
            return start(restart)
        except RankFailedError:
            continue
    return start(max_restarts)
