"""Latency and bandwidth of a level from timed collectives: a non-negative least-squares line,
and a factor for collectives that a library does slower than the line says."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncline.cluster.collectives import Collective, ring_terms
from syncline.cluster.topology import Slowdown

NOTABLE_SLOWDOWN = 1.3
"""A collective that is less off than this has no slowdown of its own: noise is of that order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSample:
    """One collective of one size, timed: the median of its repetitions on the slowest rank."""

    kind: Collective
    members: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """What the samples say about a level, and how well they agree with it."""

    latency_s: float
    bytes_per_s: float
    slowdown: Slowdown
    error: float
    """Median of |predicted / measured - 1| over all samples."""
    error_by_kind: dict[Collective, float]
    """The same for each collective: it shows which of them the figures describe badly."""


def fit_link(samples: Sequence[LinkSample]) -> LinkFit:
    """The latency α, inverse bandwidth β and slowdowns that describe all samples best.

    A sample of M bytes predicts slowdown·(steps·α + fraction·M·β) (`ring_terms`). Errors count relative to
    the time measured, so that microseconds of small messages weigh as much as seconds of large ones.
    A collective has a slowdown only if it is consistently slower or faster than all of them together.
    """
    if not samples:
        raise ValueError("there is nothing to fit")
    seconds = np.array([sample.seconds for sample in samples])
    terms = np.array([_terms(sample) for sample in samples])
    kinds = np.array([sample.kind for sample in samples])
    factors = np.ones(len(samples))
    figures = _fit_line(terms, seconds)
    # Once more without what the first fit owes to the collectives that are out of line.
    for _ in range(2):
        factors = _factors(kinds, seconds / (terms @ figures))
        figures = _fit_line(terms, seconds / factors)
    # Where noise has put all of them out of line, it is the line that is off.
    nearest = factors[np.abs(np.log(factors)).argmin()]
    factors, figures = factors / nearest, figures * nearest
    errors = np.abs(factors * (terms @ figures) / seconds - 1)
    names = list(dict.fromkeys(sample.kind for sample in samples))
    slowdowns = {kind: round(float(factors[kinds == kind][0]), 3) for kind in names}
    return LinkFit(
        latency_s=float(figures[0]),
        bytes_per_s=float(1 / figures[1]),
        slowdown=Slowdown(**slowdowns),
        error=float(np.median(errors)),
        error_by_kind={kind: float(np.median(errors[kinds == kind])) for kind in names},
    )


def _fit_line(terms: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """α and β > 0."""
    latency_s, s_per_byte = nonnegative_least_squares(terms / seconds[:, None], np.ones(len(seconds)))
    if s_per_byte <= 0:
        # Times that do not grow with size: all that is known is the best rate seen.
        s_per_byte = (seconds / terms[:, 1]).min()
    return np.array([latency_s, s_per_byte])


def _factors(kinds: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """For each sample the median ratio of its collective, or 1 where that is hardly another number."""
    factors = np.ones(len(ratios))
    for kind in np.unique(kinds):
        median = float(np.median(ratios[kinds == kind]))
        if not 1 / NOTABLE_SLOWDOWN < median < NOTABLE_SLOWDOWN:
            factors[kinds == kind] = median
    return factors


def nonnegative_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimises |matrix x - target|, for a handful of unknowns.

    The optimum is the unconstrained one on the unknowns that are not 0, so every choice of those is tried.
    """
    unknowns = matrix.shape[1]
    best = np.zeros(unknowns)
    best_error = float(target @ target)
    for count in range(1, unknowns + 1):
        for chosen in itertools.combinations(range(unknowns), count):
            candidate = np.zeros(unknowns)
            candidate[list(chosen)] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            residual = matrix @ candidate - target
            error = float(residual @ residual)
            if (candidate >= 0).all() and error < best_error:
                best, best_error = candidate, error
    return best


def _terms(sample: LinkSample) -> tuple[float, float]:
    steps, fraction = ring_terms(sample.kind, sample.members)
    return float(steps), fraction * sample.nbytes
