"""Who takes part in a run whose nodes are lost and come back, in threads with a real store."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch.distributed as dist

from syncline.cluster import heartbeat, membership
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
def losses():
    """The ranks that were told of a loss while they did something else, as often as they were."""
    return []


@pytest.fixture
def open_members(store, losses, monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.05)
    monkeypatch.setattr(membership, "DEAD_AFTER_S", 0.5)
    opened = []

    def open_member(rank):
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
        opened.append(Membership(rank, client, lambda: losses.append(rank.index)))
        return opened[-1]

    yield open_member
    for each in opened:
        each.close()


def together(*calls):
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result(timeout=60) for future in futures]


def lose(member):
    """What a rank does that has missed a node."""
    member.miss()
    member.regroup()


def test_a_lost_node_is_left_out_and_taken_back(open_members):
    members = [open_members(rank_of(index)) for index in range(6)]
    assert members[0].generation.sizes == {0: 2, 1: 2, 2: 2}
    lost, living = members[2:4], members[:2] + members[4:]
    for each in lost:
        each.close()
    together(*(partial(lose, each) for each in living))
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
        time.sleep(1.5)
        members[5].regroup()

    together(*(partial(lose, each) for each in members[:5]), late)
    assert members[0].generation == Generation(number=1, sizes={0: 2, 1: 2, 2: 2})


def wait_until(is_so, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_who_waits_for_something_else_is_told_of_a_loss_once(open_members, losses):
    members = [open_members(rank_of(index)) for index in range(6)]
    first, *others = members
    with ThreadPoolExecutor(6) as pool:
        arrived = [pool.submit(lose, first)]
        wait_until(lambda: set(losses) >= {1, 2, 3, 4, 5})
        arrived += [pool.submit(lose, each) for each in others]
        assert [future.result(timeout=60) for future in arrived] == [None] * 6
    # Of the next generation nobody is missed.
    time.sleep(0.3)
    assert len(losses) == len(set(losses))
    assert first.generation == Generation(number=1, sizes={0: 2, 1: 2, 2: 2})


def test_who_does_not_come_to_a_meeting_is_told_of_a_loss(open_members, losses, monkeypatch):
    monkeypatch.setattr(membership, "SILENT_AFTER_S", 1.0)
    members = [open_members(rank_of(index)) for index in range(6)]
    with ThreadPoolExecutor(6) as pool:
        # As if for newcomers, so that nobody says that a node is missed.
        arrived = [pool.submit(each.regroup) for each in members[:5]]
        wait_until(lambda: 5 in losses)
        arrived.append(pool.submit(lose, members[5]))
        assert [future.result(timeout=60) for future in arrived] == [None] * 6
    assert members[5].generation == Generation(number=1, sizes={0: 2, 1: 2, 2: 2})


def test_nobody_is_missed_by_one_who_rests(open_members, losses, monkeypatch):
    monkeypatch.setattr(membership, "SILENT_AFTER_S", 0.3)
    members = [open_members(rank_of(index)) for index in range(6)]
    wait_until(lambda: len(members[0]._heartbeat._beats) == 6)
    members[0].rest()
    members[5].close()
    wait_until(lambda: members[0]._heartbeat.silence_s(2) > 0.6)
    assert losses == []


def test_without_the_first_node_there_is_no_meeting():
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True)
    member = Membership(rank_of(5), dist.TCPStore("127.0.0.1", kept.port, is_master=False), lambda: None)
    del kept
    with pytest.raises(NodeLostError, match="first node of the run cannot be reached"):
        lose(member)
    member.close()


def test_newcomers_alone_are_no_loss(open_members, losses):
    members = [open_members(rank_of(index)) for index in range(6)]
    together(*(each.regroup for each in members))
    time.sleep(0.3)
    assert losses == []


def test_a_silent_rank_is_missed_though_nobody_waits_for_it(open_members, losses, monkeypatch):
    monkeypatch.setattr(membership, "SILENT_AFTER_S", 1.0)
    members = [open_members(rank_of(index)) for index in range(6)]
    # Wait until all have been heard: before that nobody is missed.
    wait_until(lambda: len(members[0]._heartbeat._beats) == 6)
    # The node's other rank still beats.
    members[3].close()
    living = [0, 1, 2, 4, 5]
    wait_until(lambda: sorted(losses) == living)
    together(*(partial(lose, members[index]) for index in living))
    assert members[0].generation == Generation(number=1, sizes={0: 2, 2: 2})
    assert sorted(losses) == living
