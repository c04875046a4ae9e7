"""Signs of life: every rank beats in the store of its run, and the first rank notes who has fallen silent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch.distributed as dist

from syncline.cluster.rank import Rank

BEAT_S = 0.5


class Heartbeat:
    """Beats beside the work of a rank.

    Args:
        rank: This rank, as its launcher numbered it.
        store: A connection of its own to the store of the run.
        look: Called after each beat, with that connection.
    """

    def __init__(self, rank: Rank, store: dist.Store, look: Callable[[dist.Store], None]) -> None:
        self._rank = rank
        self._store = store
        self._look = look
        self._keys = [f"beat/{index}" for index in range(rank.world_size)]
        self._beats: list[bytes] = []
        self._missed = [0] * rank.world_size
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Beat from now on."""
        # At once: who dies before its first beat would never be missed.
        self._beat()
        self._thread.start()

    def silence_s(self, node: int) -> float:
        """On the first rank: for how long some rank of a node has not beaten.

        Counted in own beats: while this process stands still, nobody else falls silent.
        """
        return BEAT_S * max(self._missed[index] for index in self._ranks_of(node))

    def expect(self, node: int) -> None:
        """On the first rank: a node that was silent has come back."""
        for index in self._ranks_of(node):
            self._missed[index] = 0

    def close(self) -> None:
        """Stop beating."""
        self._ending.set()
        self._thread.join()

    def _ranks_of(self, node: int) -> range:
        size = self._rank.local_world_size
        return range(node * size, (node + 1) * size)

    def _run(self) -> None:
        try:
            while not self._ending.wait(BEAT_S):
                self._beat()
                if self._rank.is_first:
                    self._listen()
                self._look(self._store)
        except RuntimeError:
            # The store has ended with the first rank: whoever needs it next will say so.
            return

    def _beat(self) -> None:
        self._store.add(self._keys[self._rank.index], 1)

    def _listen(self) -> None:
        # Before everybody has beaten once, nobody is missed.
        if not self._store.check(self._keys):
            return
        heard = self._store.multi_get(self._keys)
        for index, (before, now) in enumerate(zip(self._beats or heard, heard, strict=True)):
            self._missed[index] = self._missed[index] + 1 if self._beats and before == now else 0
        self._beats = heard
