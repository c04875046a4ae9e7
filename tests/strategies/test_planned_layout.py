"""The moves between layouts, against a simulation of all devices in one process."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from syncline.planning.states import PARTIAL, WHOLE
from syncline.strategies.planned.layout import Kind, Layout, Move, axes_in, find_moves

Place = tuple[int, ...]
Devices = dict[Place, np.ndarray]


@st.composite
def changes(draw: st.DrawFn) -> tuple[tuple[int, ...], int, Layout, Layout]:
    """Sizes of the axes, the number of dims of a tensor, and two layouts."""
    sizes = tuple(draw(st.lists(st.integers(2, 3), min_size=1, max_size=3)))
    dims = draw(st.integers(2, 3))
    states = st.sampled_from([WHOLE, PARTIAL, *range(dims)])
    layouts = st.tuples(*(states for _ in sizes))
    return sizes, dims, draw(layouts), draw(layouts)


def places(sizes: tuple[int, ...]) -> list[Place]:
    return list(product(*map(range, sizes)))


def index(place: Place, sizes: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int]:
    """Which one a device is of those along some axes, and of how many."""
    found = 0
    for axis in axes:
        found = found * sizes[axis] + place[axis]
    return found, math.prod(sizes[axis] for axis in axes)


def cut(tensor: np.ndarray, dim: int, number: int, parts: int) -> np.ndarray:
    return np.split(tensor, parts, axis=dim)[number]


def distribute(whole: np.ndarray, layout: Layout, sizes: tuple[int, ...]) -> Devices:
    """Every device's part; summands differ from device to device, and are unlike the whole."""
    summed = axes_in(layout, PARTIAL)
    count = math.prod(sizes[axis] for axis in summed)
    random = np.random.default_rng(1)
    summands = random.integers(-9, 10, (count, *whole.shape))
    summands[-1] += whole - summands.sum(axis=0)
    found: Devices = {}
    for place in places(sizes):
        part = summands[index(place, sizes, summed)[0]]
        for dim in range(whole.ndim):
            part = cut(part, dim, *index(place, sizes, axes_in(layout, dim)))
        found[place] = part
    return found


def peers(devices: Devices, place: Place, axes: tuple[int, ...]) -> list[Place]:
    """The devices that differ from one along these axes only, the first axis slowest."""
    return [
        other
        for other in sorted(devices, key=lambda one: [one[axis] for axis in axes])
        if all(mine == its or axis in axes for axis, (mine, its) in enumerate(zip(place, other, strict=True)))
    ]


def make_move(devices: Devices, move: Move, sizes: tuple[int, ...]) -> Devices:
    found: Devices = {}
    for place, own in devices.items():
        number, parts = index(place, sizes, move.axes)
        group = [devices[other] for other in peers(devices, place, move.axes)]
        assert len(group) == parts
        if move.kind is Kind.SLICE:
            new = cut(own, move.dim, number, parts)
        elif move.kind is Kind.REDUCE_SCATTER:
            new = cut(np.add.reduce(group), move.dim, number, parts)
        elif move.kind is Kind.ALL_REDUCE:
            new = np.asarray(sum(group))
        elif move.kind is Kind.ALL_GATHER:
            new = np.concatenate(group, axis=move.dim)
        elif move.kind is Kind.ALL_TO_ALL:
            new = np.concatenate([cut(one, move.to_dim, number, parts) for one in group], axis=move.dim)
        elif move.kind is Kind.PAD:
            zeros = [np.zeros_like(own)] * parts
            new = np.concatenate([*zeros[:number], own, *zeros[number + 1 :]], axis=move.dim)
        else:
            new = own if number == 0 else np.zeros_like(own)
        found[place] = new
    return found


def summed_up(devices: Devices, layout: Layout) -> Devices:
    """Every device with the sum of the summands that it has one of."""
    axes = axes_in(layout, PARTIAL)
    return {place: sum(devices[one] for one in peers(devices, place, axes)) for place in devices}  # type: ignore[misc]


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(changes())
def test_moves_lead_to_the_target(change):
    sizes, dims, source, target = change
    # Every dim can be cut by all axes, and no two elements are equal.
    side = math.prod(sizes)
    whole = np.arange(side**dims).reshape((side,) * dims) + 1
    devices = distribute(whole, source, sizes)
    for move in find_moves(source, target):
        devices = make_move(devices, move, sizes)
    wanted = distribute(whole, tuple(WHOLE if state == PARTIAL else state for state in target), sizes)
    given_sums = summed_up(devices, target)
    for place, part in wanted.items():
        np.testing.assert_array_equal(given_sums[place], part)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(changes())
def test_nothing_moves_that_need_not(change):
    _, _, source, target = change
    assert find_moves(source, source) == ()
    moves = find_moves(source, target)
    assert bool(moves) == (source != target)
    if all(before in (WHOLE, after) for before, after in zip(source, target, strict=True)) and not any(
        after == PARTIAL for after in target
    ):
        gathers = {move.kind for move in moves} - {Kind.SLICE}
        # A cut from the outside of one that is there already has to undo that one first.
        assert not gathers or any(before >= 0 for before in source)
