"""How long a collective takes, from the latency and bandwidth of the levels that it crosses.

Symbols: M bytes, n members, α the latency of one step, b what one device can send through a level
(`Level.bytes_per_s`, all devices at once). Every algorithm takes a time that is linear in M, so a
collective is the minimum of a few `Line`s, which NumPy evaluates for arrays of sizes.

On one level, or over several levels treated as one flat network:

    all-gather, reduce-scatter   ring           (n-1) α + M (n-1)/n / b
    all-reduce                   ring         2 (n-1) α + 2 M (n-1)/n / b
                                 tree    2 ⌈log2 n⌉ α + 2 M / b
    broadcast                    chain          (n-1) α + M / b
                                 tree      ⌈log2 n⌉ (α + M / b)
    all-to-all                   pairwise       (n-1) α + M (n-1)/n / b

A flat algorithm over several levels steps at the pace of its slowest link: α is the largest latency, and b
the smallest of k·b_l, where k is how many members of the group share the way out of one unit of level l.
(Pairwise exchange instead meets each peer over the level that joins them.)

Hierarchical algorithms go level by level: all-reduce is reduce-scatter on the inner level, all-reduce of
the n-th part on the outer ones, all-gather on the inner; the parts cross the slow links once. Every way
to join neighbouring levels is tried, and the fastest for the size counts.

M is always the size of the largest buffer on one device: the input of all-reduce, reduce-scatter, all-to-all,
broadcast and send, the output of all-gather. Nothing to send takes no time, and so does a group of one.
Where a library was measured to be slower than these algorithms, `Level.slowdown` multiplies the time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from syncline.cluster.topology import Cluster, Level

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"]
"""`send` is from each device to its neighbour along the outermost level of the group, all at once."""

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


@dataclass(frozen=True, slots=True)
class Line:
    """One algorithm on one group: `latency_s + s_per_byte * M` seconds."""

    algorithm: str
    """Steps in order, for people: `ring node, tree network`."""
    latency_s: float
    s_per_byte: float

    def then(self, other: Line) -> Line:
        """This algorithm followed by another one."""
        return Line(
            algorithm=", ".join(name for name in (self.algorithm, other.algorithm) if name),
            latency_s=self.latency_s + other.latency_s,
            s_per_byte=self.s_per_byte + other.s_per_byte,
        )

    def slowed(self, factor: float) -> Line:
        """The same algorithm where everything takes so many times as long."""
        return Line(self.algorithm, self.latency_s * factor, self.s_per_byte * factor)

    def of_part(self, fraction: float) -> Line:
        """The same algorithm on a fraction of the bytes."""
        return Line(self.algorithm, self.latency_s, self.s_per_byte * fraction)


def collective_s(
    cluster: Cluster,
    kind: Collective,
    spans: Sequence[int],
    nbytes: npt.ArrayLike,
    *,
    bucket_bytes: float = 0.0,
) -> np.ndarray:
    """Seconds of a collective, of the shape of `nbytes`, with what devices wait for each other.

    Args:
        cluster: Where it runs.
        kind: Which collective.
        spans: How many members the group has at each level, from the inside out (`Mesh.spans`).
        nbytes: The size of the largest buffer on one device, one or many.
        bucket_bytes: What is smaller is sent together with others, so many bytes at a time, and has that
            share of the latency. Computing goes on meanwhile, so nobody waits for others.
    """
    sizes = np.asarray(nbytes, dtype=np.float64)
    lines = collective_lines(cluster, kind, tuple(spans))
    if not lines:
        return np.zeros_like(sizes)
    share = np.minimum(1.0, sizes / bucket_bytes) if bucket_bytes else 1.0
    each = (share * line.latency_s + line.s_per_byte * sizes for line in lines)
    seconds = functools.reduce(np.minimum, each) + (0.0 if bucket_bytes else cluster.device.skew_s)
    return np.where(sizes > 0, seconds, 0.0)


def fastest_line(cluster: Cluster, kind: Collective, spans: Sequence[int], nbytes: float) -> Line | None:
    """The algorithm that `collective_s` counts for one size; None where nothing needs to be sent."""
    lines = collective_lines(cluster, kind, tuple(spans))
    if not lines or nbytes <= 0:
        return None
    return min(lines, key=lambda line: line.latency_s + line.s_per_byte * nbytes)


@functools.lru_cache(maxsize=4096)
def collective_lines(cluster: Cluster, kind: Collective, spans: tuple[int, ...]) -> tuple[Line, ...]:
    """Every algorithm for a collective on a group that can be the fastest at some size."""
    if len(spans) != len(cluster.levels) or any(
        span < 1 or level.size % span for span, level in zip(spans, cluster.levels, strict=False)
    ):
        sizes = tuple(level.size for level in cluster.levels)
        raise ValueError(f"a group of {spans} does not divide levels of {sizes}")
    crossed = [(level, span) for level, span in zip(cluster.levels, spans, strict=True) if span > 1]
    if not crossed:
        return ()
    if kind == "send":
        crossed = crossed[-1:]
        lines = [_send(crossed[0][0])]
    else:
        lines = [line for parts in _groupings(crossed) for line in _hierarchical(kind, parts)]
    slowdown = max(getattr(level.slowdown, kind) for level, _ in crossed)
    return tuple(line.slowed(slowdown) for line in _undominated(lines))


def ring_terms(kind: Collective, members: int) -> tuple[int, float]:
    """Steps and sent fraction of M of the plain algorithm: its time is steps·α + fraction·M / b."""
    if members == 1:
        return 0, 0.0
    around = (members - 1) / members
    return {
        "all_reduce": (2 * (members - 1), 2 * around),
        "all_gather": (members - 1, around),
        "reduce_scatter": (members - 1, around),
        "all_to_all": (members - 1, around),
        "broadcast": (members - 1, 1.0),
        "send": (1, 1.0),
    }[kind]


_Part = tuple[tuple[Level, int], ...]


def _groupings(crossed: Sequence[tuple[Level, int]]) -> Iterator[list[_Part]]:
    """All ways to join neighbouring levels, from one flat part to a part for each level."""
    gaps = range(1, len(crossed))
    for cuts in itertools.chain.from_iterable(itertools.combinations(gaps, r) for r in range(len(crossed))):
        bounds = [0, *cuts, len(crossed)]
        yield [tuple(crossed[start:end]) for start, end in itertools.pairwise(bounds)]


def _hierarchical(kind: Collective, parts: Sequence[_Part]) -> Iterator[Line]:
    inner, rest = parts[0], parts[1:]
    if not rest:
        yield from _flat(kind, inner)
        return
    members = math.prod(span for _, span in inner)
    for outer in _hierarchical(kind, rest):
        for line in _flat("reduce_scatter" if kind == "all_reduce" else kind, inner):
            if kind == "all_reduce":
                yield line.then(outer.of_part(1 / members)).then(line)
            elif kind == "reduce_scatter":
                yield line.then(outer.of_part(1 / members))
            elif kind == "all_gather":
                yield outer.of_part(1 / members).then(line)
            else:
                yield outer.then(line)


def _flat(kind: Collective, part: _Part) -> Iterator[Line]:
    names = "+".join(level.name for level, _ in part)
    if kind == "all_to_all":
        yield _pairwise(part, names)
        return
    members, latency_s, s_per_byte = _slowest_link(part)
    steps, fraction = ring_terms(kind, members)
    yield Line(
        f"{'chain' if kind == 'broadcast' else 'ring'} {names}", steps * latency_s, fraction * s_per_byte
    )
    depth = (members - 1).bit_length()
    if kind == "all_reduce":
        yield Line(f"tree {names}", 2 * depth * latency_s, 2 * s_per_byte)
    if kind == "broadcast":
        yield Line(f"tree {names}", depth * latency_s, depth * s_per_byte)


def _slowest_link(part: _Part) -> tuple[int, float, float]:
    """Members, latency and seconds per byte of several levels as one flat network."""
    members = 1
    bytes_per_s = math.inf
    for level, span in part:
        bytes_per_s = min(bytes_per_s, members * level.bytes_per_s)
        members *= span
    return members, max(level.latency_s for level, _ in part), 1 / bytes_per_s


def _pairwise(part: _Part, names: str) -> Line:
    members = math.prod(span for _, span in part)
    line = Line("", 0.0, 0.0)
    inside = 1
    for level, span in part:
        peers = (span - 1) * inside
        line = line.then(Line("", peers * level.latency_s, peers / members / level.bytes_per_s))
        inside *= span
    return Line(f"pairwise {names}", line.latency_s, line.s_per_byte)


def _send(level: Level) -> Line:
    return Line(f"send {level.name}", level.latency_s, 1 / level.bytes_per_s)


def _undominated(lines: Sequence[Line]) -> Iterator[Line]:
    """Those lines that no other is at least as good as in both latency and slope."""
    best = math.inf
    for line in sorted(lines, key=lambda line: (line.latency_s, line.s_per_byte)):
        if line.s_per_byte < best:
            best = line.s_per_byte
            yield line
