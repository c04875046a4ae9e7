"""Who takes part in a run whose nodes are lost and come back, in threads with a real store."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from syncline.cluster import membership
from syncline.cluster.membership import Generation, Membership
from syncline.cluster.rank import Rank
from syncline.errors import NodeLostError


def rank_of(index, *, restarts=0):
    return Rank(
        index=index,
        world_size=6,
        local_index=index % 2,
        local_world_size=2,
        restarts=restarts,
        rejoins=restarts > 0,
    )


@pytest.fixture
def store():
    # A port of its own: the system chooses.
    return dist.TCPStore("127.0.0.1", 0, is_master=True)


@pytest.fixture
def open_members(store, monkeypatch):
    monkeypatch.setattr(membership, "BEAT_S", 0.05)
    monkeypatch.setattr(membership, "DEAD_AFTER_S", 0.5)
    opened = []

    def open_member(rank):
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
        opened.append(Membership(rank, client))
        return opened[-1]

    yield open_member
    for each in opened:
        each.close()


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result(timeout=60) for future in futures]


def test_a_lost_node_is_left_out_and_taken_back(open_members):
    members = [open_members(rank_of(index)) for index in range(6)]
    assert members[0].generation.sizes == {0: 2, 1: 2, 2: 2}
    lost, living = members[2:4], members[:2] + members[4:]
    for each in lost:
        each.close()
    together(*(each.regroup for each in living))
    for each in living:
        assert each.generation == Generation(number=1, sizes={0: 2, 2: 2})
    assert living[2].generation.place(rank_of(4)) == (2, 4)
    with pytest.raises(NodeLostError, match="Node 1 was taken for lost"):
        living[0].generation.place(rank_of(2))
    newcomers = [open_members(rank_of(index, restarts=1)) for index in (2, 3)]
    together(*(each.join for each in newcomers), *(each.regroup for each in living))
    for each in (*living, *newcomers):
        assert each.generation == Generation(number=2, sizes={0: 2, 1: 2, 2: 2})
    assert newcomers[1].generation.place(rank_of(3)) == (3, 6)


def test_all_are_waited_for_while_they_live(open_members):
    members = [open_members(rank_of(index)) for index in range(6)]

    def late():
        # Much later than a lost node would be given up.
        members[5]._ending.wait(1.5)
        members[5].regroup()

    together(*(each.regroup for each in members[:5]), late)
    assert members[0].generation == Generation(number=1, sizes={0: 2, 1: 2, 2: 2})
