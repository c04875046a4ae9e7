"""What redistributing a tensor costs, against figures worked out by hand."""

import itertools

import numpy as np
import pytest

from plan_samples import made_up_cluster, plausible_cluster, two_by_two
from syncline.cluster.collectives import Collective, collective_s
from syncline.planning.axes import SearchAxes, search_axes
from syncline.planning.states import (
    PARTIAL,
    WHOLE,
    axes_mask,
    local_fraction,
    redistribute_s,
    whole_for_partial,
)


def seconds(axes: SearchAxes, nbytes: float, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    rows = np.array([source], dtype=np.int8), np.array([target], dtype=np.int8)
    return float(redistribute_s(axes, nbytes, *rows)[0, 0])


# 400 bytes on two devices of a node, 100 bytes a second, no latency.
ON_ONE_AXIS = {
    (0, 0): 0.0,
    (0, 1): 1.0,  # all-to-all: half of the 200 bytes that each has
    (0, WHOLE): 2.0,  # all-gather: each gets the other's 200
    (0, PARTIAL): 0.0,  # zeros around it
    (WHOLE, 0): 0.0,  # a slice
    (WHOLE, WHOLE): 0.0,
    (WHOLE, PARTIAL): 0.0,  # one keeps it
    (PARTIAL, 0): 2.0,  # reduce-scatter: each sends half of 400
    (PARTIAL, WHOLE): 4.0,  # all-reduce: both of these
    (PARTIAL, PARTIAL): 0.0,
}


@pytest.mark.parametrize(("move", "expected"), ON_ONE_AXIS.items())
def test_each_move_inside_a_node(move, expected):
    assert seconds(two_by_two(), 400, (WHOLE, move[0]), (WHOLE, move[1])) == pytest.approx(expected)


@pytest.mark.parametrize(("move", "expected"), ON_ONE_AXIS.items())
def test_each_move_between_nodes_takes_the_slow_link(move, expected):
    assert seconds(two_by_two(), 400, (move[0], WHOLE), (move[1], WHOLE)) == pytest.approx(10 * expected)


@pytest.mark.parametrize(
    ("move", "steps"), [((0, 1), 1), ((0, WHOLE), 1), ((PARTIAL, 0), 1), ((PARTIAL, WHOLE), 2)]
)
def test_latency_counts_once_a_step(move, steps):
    axes = two_by_two(latency_s=0.5)
    expected = ON_ONE_AXIS[move] + 0.5 * steps
    assert seconds(axes, 400, (WHOLE, move[0]), (WHOLE, move[1])) == pytest.approx(expected)


def test_what_stays_cut_elsewhere_is_not_sent():
    assert seconds(two_by_two(), 400, (0, 1), (0, WHOLE)) == pytest.approx(1.0)


def test_slices_come_first():
    assert seconds(two_by_two(), 400, (WHOLE, PARTIAL), (0, WHOLE)) == pytest.approx(2.0)


def test_sums_are_scattered_before_the_rest_is_gathered():
    # 200 bytes are reduce-scattered in the node, then 100 become 200 again between nodes.
    assert seconds(two_by_two(), 400, (0, PARTIAL), (WHOLE, 1)) == pytest.approx(1.0 + 10.0)


def test_gathering_over_both_levels_goes_level_by_level():
    # Between nodes 100 become 200 at 10 bytes/s, then in the node 200 become 400 at 100 bytes/s.
    assert seconds(two_by_two(), 400, (0, 1), (WHOLE, WHOLE)) == pytest.approx(10.0 + 2.0)


def test_nothing_to_send_and_no_axes():
    assert seconds(two_by_two(), 0, (PARTIAL, PARTIAL), (WHOLE, WHOLE)) == 0
    alone = search_axes(made_up_cluster(1, 1))
    assert redistribute_s(alone, 400, np.zeros((2, 0), np.int8), np.zeros((3, 0), np.int8)).shape == (2, 3)


def test_all_pairs_equal_a_plain_computation():
    axes = search_axes(plausible_cluster(2, 4))
    layouts = list(itertools.product([0, 1, WHOLE, PARTIAL], repeat=len(axes.axes)))
    states = np.array(layouts, dtype=np.int8)
    found = redistribute_s(axes, 1e6, states, states)
    for row, source in enumerate(layouts):
        for col, target in enumerate(layouts):
            assert found[row, col] == pytest.approx(_plainly(axes, 1e6, source, target)), (source, target)


def _plainly(axes: SearchAxes, nbytes: float, source: tuple[int, ...], target: tuple[int, ...]) -> float:
    """One collective after the other, on what a device holds at that moment."""
    moves = list(zip(source, target, strict=True))

    def mask(wanted) -> int:
        return sum(1 << index for index, (one, other) in enumerate(moves) if wanted(one, other))

    def send(kind: Collective, over: int, size: float) -> float:
        return float(collective_s(axes.cluster, kind, axes.spans(over), size))

    cut = mask(lambda one, other: one >= 0 or (one == WHOLE and other >= 0))
    scattered = mask(lambda one, other: one == PARTIAL and other >= 0)
    exchanged = mask(lambda one, other: one >= 0 and other >= 0 and one != other)
    reduced = mask(lambda one, other: one == PARTIAL and other == WHOLE)
    gathered = mask(lambda one, other: one >= 0 and other == WHOLE)
    held = nbytes / axes.members(cut)
    total = send("reduce_scatter", scattered, held)
    held /= axes.members(scattered)
    total += send("all_to_all", exchanged, held) + send("all_reduce", reduced, held)
    return total + send("all_gather", gathered, held * axes.members(gathered))


def test_whole_for_partial_local_fraction_and_masks():
    states = np.array([[0, PARTIAL], [WHOLE, 1], [PARTIAL, WHOLE]], dtype=np.int8)
    assert whole_for_partial(states).tolist() == [[0, WHOLE], [WHOLE, 1], [WHOLE, WHOLE]]
    assert local_fraction(two_by_two(), states).tolist() == [0.5, 0.5, 1.0]
    assert axes_mask(states, states == PARTIAL).tolist() == [0b10, 0, 0b01]
