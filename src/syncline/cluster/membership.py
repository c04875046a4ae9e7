"""Which nodes take part in a run whose nodes may be lost and come back.

Nodes meet in the store that the first rank keeps. Each node's first rank beats there; who stops beating is
lost. A new group is a new *generation*: all who live arrive, the first rank waits until every known node has
arrived or stopped beating, and tells who the members are. A node that comes back asks to join, and is invited
to the next generation. The first node cannot be lost: it keeps the store and writes the run's files.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass

import torch.distributed as dist

from syncline.cluster.rank import Rank
from syncline.errors import NodeLostError

BEAT_S = 0.5
DEAD_AFTER_S = 10.0
"""A node that has not beaten for so long is lost."""
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """The members of one group."""

    number: int
    sizes: dict[int, int]
    """Ranks of each node, by the node's number in the run."""

    def place(self, rank: Rank) -> tuple[int, int]:
        """The index of a rank in the group, and the group's size; a node that is no member has no place."""
        if rank.node not in self.sizes:
            raise NodeLostError(
                f"Node {rank.node} was taken for lost by the others, who went on without it.\n"
                "Start it again to have it join them."
            )
        before = sum(size for node, size in self.sizes.items() if node < rank.node)
        return before + rank.local_index, sum(self.sizes.values())


class Membership:
    """One rank's view of who takes part.

    Args:
        rank: This rank, as its launcher numbered it.
        store: The store of the run.
    """

    def __init__(self, rank: Rank, store: dist.Store) -> None:
        sizes = dict.fromkeys(range(rank.nodes), rank.local_world_size)
        self.generation = Generation(number=0, sizes=sizes)
        self.has_newcomers = False
        """On the first rank: whether nodes ask to join."""
        self._rank = rank
        self._store = dist.PrefixStore("membership", store)
        self._invited = 0
        self._ending = threading.Event()
        # A connection of its own: this one is busy while it waits.
        own = dist.PrefixStore("membership", store.clone())  # pyrefly: ignore[missing-attribute]
        self._beating = threading.Thread(target=self._beat, args=(own,), name="membership", daemon=True)
        self._beating.start()

    def join(self) -> None:
        """Ask to take part, and wait for the invitation: for a node that comes back."""
        own = f"{self._rank.node}-{self._rank.restarts}"
        if self._store.add(f"ready/{own}", 1) == self._rank.local_world_size:
            request = {"node": self._rank.node, "size": self._rank.local_world_size, "own": own}
            number = self._store.add("requests", 1) - 1
            self._store.set(f"request/{number}", json.dumps(request))
        self._agree(int(self._wait(f"invitation/{own}")))

    def regroup(self) -> None:
        """Find the members of the next generation; every rank that lives must call this."""
        self._agree(self.generation.number + 1)

    def close(self) -> None:
        """Stop beating."""
        self._ending.set()
        self._beating.join()

    def _agree(self, number: int) -> None:
        self._store.add(f"arrived/{number}/{self._rank.node}", 1)
        if self._rank.is_first:
            sizes = self._gather(number)
            self._store.set(f"members/{number}", json.dumps(sizes))
        told = json.loads(self._wait(f"members/{number}"))
        self.generation = Generation(number=number, sizes={int(node): size for node, size in told.items()})

    def _gather(self, number: int) -> dict[int, int]:
        """Wait until every node has arrived or is lost; the sizes of those that have arrived."""
        expected = dict(self.generation.sizes)
        beats: dict[int, tuple[int, float]] = {}
        arrived: dict[int, int] = {}
        while True:
            expected |= self._invite(number)
            for node, size in expected.items():
                if node not in arrived and self._store.add(f"arrived/{number}/{node}", 0) >= size:
                    arrived[node] = size
            living = [node for node in expected if node not in arrived and self._lives(node, beats)]
            if not living:
                return dict(sorted(arrived.items()))
            time.sleep(POLL_S)

    def _lives(self, node: int, beats: dict[int, tuple[int, float]]) -> bool:
        beat, now_s = self._store.add(f"beat/{node}", 0), time.monotonic()
        if node not in beats or beats[node][0] != beat:
            beats[node] = (beat, now_s)
        return now_s - beats[node][1] < DEAD_AFTER_S

    def _invite(self, number: int) -> dict[int, int]:
        """Invite those who have asked since the last look; their sizes."""
        sizes = {}
        for request in range(self._invited, self._store.add("requests", 0)):
            asked = json.loads(self._wait(f"request/{request}"))
            self._store.set(f"invitation/{asked['own']}", str(number))
            sizes[asked["node"]] = asked["size"]
            self._invited = request + 1
        self.has_newcomers = False
        return sizes

    def _wait(self, key: str) -> str:
        """The value of a key, as soon as there is one; the end of the store is the end of waiting."""
        try:
            while not self._store.check([key]):
                time.sleep(POLL_S)
            return self._store.get(key).decode()
        except RuntimeError as error:
            raise NodeLostError(
                f"The first node of the run cannot be reached any more: {error}\n"
                "It keeps what the nodes need to find each other. Resume the run from its last checkpoint."
            ) from error

    def _beat(self, store: dist.Store) -> None:
        speaks = self._rank.local_index == 0
        try:
            while not self._ending.wait(BEAT_S):
                if speaks:
                    store.add(f"beat/{self._rank.node}", 1)
                if self._rank.is_first:
                    self.has_newcomers = store.add("requests", 0) > self._invited
        except RuntimeError:
            # The store has ended with the first rank: whoever needs it next will say so.
            return
