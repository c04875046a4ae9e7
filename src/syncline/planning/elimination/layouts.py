"""Layout classes: configurations of one node that look alike to a neighbour.

What an edge costs depends only on how the tensor on it is laid out, so several configurations of an
operator share one row of the edge's cost matrix. A table keeps each distinct row and column once, and
everything sent along the edge is indexed by class rather than by configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
WORTH_COLLAPSING = 1024
"""The cells from which looking for equal rows pays."""


@dataclass(frozen=True, eq=False)
class Classes:
    """A partition of K configurations into C classes, none of them empty."""

    labels: Ints
    """The class of each configuration, 0 <= labels[k] < C."""
    first: Ints
    """The lowest configuration of each class."""

    @classmethod
    def of(cls, labels: Ints) -> Classes:
        """The partition with these labels, whatever numbers they are; classes are in order of label."""
        order = labels.argsort(kind="stable")
        ranked = labels[order]
        opens = np.empty(len(labels), dtype=bool)
        opens[0] = True
        np.not_equal(ranked[1:], ranked[:-1], out=opens[1:])
        dense = np.empty(len(labels), dtype=np.intp)
        dense[order] = np.cumsum(opens) - 1
        return cls(dense, order[opens])

    @property
    def count(self) -> int:
        """C, the number of classes."""
        return len(self.first)

    @cached_property
    def _by_class(self) -> tuple[Ints, Ints]:
        order = self.labels.argsort(kind="stable")
        return order, np.searchsorted(self.labels[order], np.arange(self.count))

    def lowest(self, values: Floats) -> Floats:
        """The minimum over each class: out[c] = min over k with labels[k] = c of values[k]."""
        order, starts = self._by_class
        return np.minimum.reduceat(values[order], starts)

    def cheapest(self, values: Floats) -> Ints:
        """The lowest configuration of each class that attains its minimum."""
        order = np.lexsort((values, self.labels))
        return order[np.searchsorted(self.labels[order], np.arange(self.count))]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The costs of an edge (u, v): entry [i, j] of the full matrix is matrix[rows of i, cols of j].

    ``rows`` and ``cols`` are None where each configuration is a class of its own. Tables are compared
    by identity: two edges with the same costs share one.
    """

    matrix: Floats
    rows: Classes | None
    cols: Classes | None

    def transposed(self) -> Table:
        """The same costs, seen from v."""
        return Table(self.matrix.T, self.cols, self.rows)

    def row(self, i: int) -> Floats:
        """What each configuration of v pays when u has configuration i."""
        line = self.matrix[i if self.rows is None else self.rows.labels[i]]
        return line if self.cols is None else line[self.cols.labels]

    def col(self, j: int) -> Floats:
        """What each configuration of u pays when v has configuration j."""
        line = self.matrix[:, j if self.cols is None else self.cols.labels[j]]
        return line if self.rows is None else line[self.rows.labels]

    def dense(self) -> Floats:
        """The full matrix, one row and column a configuration."""
        full = self.matrix if self.rows is None else self.matrix[self.rows.labels]
        return full if self.cols is None else full[:, self.cols.labels]


def collapse(table: Table, known: dict[bytes, Classes]) -> Table:
    """The table with equal rows and equal columns kept once.

    A small one, or one that has classes already, is left as it is.

    Args:
        table: what to collapse.
        known: the classes found so far, so that equal ones are the same object.
    """
    matrix = table.matrix
    if matrix.size < WORTH_COLLAPSING or table.rows is not None or table.cols is not None:
        return table
    rows = row_classes(matrix)
    reduced = matrix if rows is None else matrix[rows.first]
    cols = row_classes(np.ascontiguousarray(reduced.T))
    reduced = reduced if cols is None else reduced[:, cols.first]
    return Table(np.array(reduced, order="C"), shared(rows, known), shared(cols, known))


def shared(classes: Classes | None, known: dict[bytes, Classes]) -> Classes | None:
    """The first known partition that is equal to this one."""
    return None if classes is None else known.setdefault(classes.labels.tobytes(), classes)


def row_classes(matrix: Floats) -> Classes | None:
    """Groups equal rows; None when all differ.

    Rows are grouped by a hash of some of their entries, then of all; only rows that compare equal share
    a class, so that a collision can at worst miss a saving.
    """
    for stride in (1 + matrix.shape[1] // 16, 1):
        hashes = _hashes(matrix[:, ::stride])
        if len(set(hashes.tolist())) == len(matrix):
            return None
        classes = Classes.of(hashes)
        if (matrix[classes.first[classes.labels]] == matrix).all():
            return classes
    return None


def _hashes(matrix: Floats) -> NDArray[np.int64]:
    """A 64-bit number for each row, equal for equal rows."""
    bits = (matrix + 0.0).view(np.uint64)  # adding 0.0 makes -0.0 and 0.0 the same bits
    bits ^= bits >> np.uint64(29)
    bits *= _multipliers(matrix.shape[1])
    return bits.sum(axis=1).view(np.int64)


@cache
def _multipliers(length: int) -> NDArray[np.uint64]:
    return np.random.default_rng(length).integers(1 << 63, size=length, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)


def join(left: Classes | None, right: Classes | None) -> Classes | None:
    """The coarsest partition that is finer than both; None stands for the finest of all."""
    if left is right:
        return left
    if left is None or right is None:
        return None
    both = Classes.of(left.labels * right.count + right.labels)
    return None if both.count == len(both.labels) else both


def refinement(fine: Classes | None, coarse: Classes | None) -> Ints | None:
    """For each class of ``fine`` the class of ``coarse`` that holds it; None when they are the same."""
    if coarse is None or fine is coarse:
        return None
    return coarse.labels if fine is None else coarse.labels[fine.first]


def restrict(table: Table, axis: int, kept: Ints) -> Table:
    """The table with only the ``kept`` configurations of u (axis 0) or of v (axis 1)."""
    matrix, classes = table.matrix, (table.rows, table.cols)[axis]
    if classes is None:
        matrix = matrix.take(kept, axis)
    else:
        labels = classes.labels[kept]
        if len(kept) <= classes.count:
            matrix, classes = matrix.take(labels, axis), None
        else:
            left = Classes.of(labels)
            if left.count < classes.count:
                matrix = matrix.take(labels[left.first], axis)
            classes = left
    return Table(matrix, table.rows, classes) if axis else Table(matrix, classes, table.cols)
