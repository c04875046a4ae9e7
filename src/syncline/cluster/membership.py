"""Which nodes take part in a run whose nodes may be lost and come back.

Nodes meet in the store that the first rank keeps. A new group is a new *generation*: all who live arrive, the
first rank waits until every known node has arrived or stopped beating, and tells who the members are. Whoever
misses a node says so in the store, and so does the first rank of one that is silent. Everybody looks there
with each beat: a collective alone may wait for a lost peer until its time is out. A node that comes back asks
to join, and is invited to the next generation. The first node cannot be lost: it keeps the store and writes
the run's files.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from syncline.cluster.heartbeat import Heartbeat
from syncline.cluster.rank import Rank
from syncline.errors import NodeLostError

DEAD_AFTER_S = 10.0
"""A node that has not beaten for so long is lost, where others have missed it."""
SILENT_AFTER_S = 30.0
"""A node that has not beaten for so long is missed, even if its connections still stand; and who does not
come to a meeting for so long is told that somebody is."""
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
        on_loss: Called once in a generation, in a thread of its own, when somebody has missed a node.
    """

    def __init__(self, rank: Rank, store: dist.Store, on_loss: Callable[[], None]) -> None:
        sizes = dict.fromkeys(range(rank.nodes), rank.local_world_size)
        self.generation = Generation(number=0, sizes=sizes)
        self.has_newcomers = False
        """On the first rank: whether nodes ask to join."""
        self._rank = rank
        self._store = dist.PrefixStore("membership", store)
        self._on_loss = on_loss
        self._invited = 0
        self._watches = rank.is_first
        self._ended = -1
        """The last generation that this rank knows to be over."""
        self._ending = threading.Lock()
        # A connection of its own: this one is busy while it waits.
        own = dist.PrefixStore("membership", store.clone())  # pyrefly: ignore[missing-attribute]
        self._heartbeat = Heartbeat(rank, own, self._look)
        self._heartbeat.start()

    def join(self) -> None:
        """Ask to take part, and wait for the invitation: for a node that comes back."""
        own = f"{self._rank.node}-{self._rank.restarts}"
        with _reaching_first_node():
            if self._store.add(f"ready/{own}", 1) == self._rank.local_world_size:
                request = {"node": self._rank.node, "size": self._rank.local_world_size, "own": own}
                number = self._store.add("requests", 1) - 1
                self._store.set(f"request/{number}", json.dumps(request))
            invitation = self._wait(f"invitation/{own}")
        self._agree(int(invitation))

    def miss(self) -> None:
        """Say that a node is missed: the others shall come to a meeting, whatever they wait for."""
        with _reaching_first_node():
            self._store.set(_missed(self.generation.number), "")

    def regroup(self) -> None:
        """Find the members of the next generation; every rank that lives must call this."""
        self._agree(self.generation.number + 1)

    def rest(self) -> None:
        """On the first rank: miss nobody any more, for others may end before this one."""
        self._watches = False

    def close(self) -> None:
        """Stop beating."""
        self._heartbeat.close()

    def _agree(self, number: int) -> None:
        with _reaching_first_node():
            self._store.add(f"arrived/{number}/{self._rank.node}", 1)
            if self._rank.is_first:
                self._store.set(f"members/{number}", json.dumps(self._gather(number)))
            told = json.loads(self._wait(f"members/{number}"))
        sizes = {int(node): size for node, size in told.items()}
        with self._ending:
            self._ended = number - 1
            self.generation = Generation(number=number, sizes=sizes)

    def _gather(self, number: int) -> dict[int, int]:
        """Wait until every node has arrived or is lost; the sizes of those that have arrived."""
        expected = dict(self.generation.sizes)
        arrived: dict[int, int] = {}
        patient_until_s = time.monotonic() + SILENT_AFTER_S
        while True:
            expected |= self._invite(number)
            for node, size in expected.items():
                if node not in arrived and self._store.add(f"arrived/{number}/{node}", 0) >= size:
                    arrived[node] = size
            missing = [node for node in expected if node not in arrived]
            if not any(self._heartbeat.silence_s(node) < DEAD_AFTER_S for node in missing):
                return dict(sorted(arrived.items()))
            if time.monotonic() > patient_until_s:
                # Somebody lives, but waits for what will not come any more.
                self._store.set(_missed(number - 1), "")
            time.sleep(POLL_S)

    def _invite(self, number: int) -> dict[int, int]:
        """Invite those who have asked since the last look; their sizes."""
        sizes = {}
        for request in range(self._invited, self._store.add("requests", 0)):
            asked = json.loads(self._wait(f"request/{request}"))
            self._store.set(f"invitation/{asked['own']}", str(number))
            self._heartbeat.expect(asked["node"])
            sizes[asked["node"]] = asked["size"]
            self._invited = request + 1
        self.has_newcomers = False
        return sizes

    def _wait(self, key: str) -> str:
        """The value of a key, as soon as there is one."""
        while not self._store.check([key]):
            time.sleep(POLL_S)
        return self._store.get(key).decode()

    def _look(self, store: dist.Store) -> None:
        """See who is missed and who asks to join; on the heartbeat's thread."""
        generation = self.generation
        if self._rank.is_first:
            self.has_newcomers = store.add("requests", 0) > self._invited
        silences_s = [self._heartbeat.silence_s(node) for node in generation.sizes]
        if self._watches and max(silences_s) >= SILENT_AFTER_S:
            store.set(_missed(generation.number), "")
        if self._ended < generation.number and store.check([_missed(generation.number)]):
            with self._ending:
                # Not if the rank has moved on meanwhile: its groups are those of the next generation then.
                if self._ended < generation.number:
                    self._ended = generation.number
                    self._on_loss()


@contextmanager
def _reaching_first_node() -> Iterator[None]:
    """The end of the store is the end of the run."""
    try:
        yield
    except RuntimeError as error:
        raise NodeLostError(
            f"The first node of the run cannot be reached any more: {error}\n"
            "It keeps what the nodes need to find each other. Resume the run from its last checkpoint."
        ) from error


def _missed(number: int) -> str:
    """The key that is there when a node of a generation is missed."""
    return f"missed/{number}"
