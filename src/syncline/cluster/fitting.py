"""Latency and bandwidth of a level from timed collectives: a non-negative least-squares line."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncline.cluster.collectives import Collective, ring_terms


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
    error: float
    """Median of |predicted / measured - 1| over all samples."""
    error_by_kind: dict[Collective, float]
    """The same for each collective: it shows which of them the two figures describe badly."""


def fit_link(samples: Sequence[LinkSample]) -> LinkFit:
    """The latency α and inverse bandwidth β that describe all samples best.

    A sample of M bytes predicts steps·α + fraction·M·β (`ring_terms`). Errors count relative to the time
    measured, so that microseconds of small messages weigh as much as seconds of large ones.
    """
    if not samples:
        raise ValueError("there is nothing to fit")
    seconds = np.array([sample.seconds for sample in samples])
    terms = np.array([_terms(sample) for sample in samples])
    latency_s, s_per_byte = nonnegative_least_squares(terms / seconds[:, None], np.ones(len(samples)))
    if s_per_byte <= 0:
        # Times that do not grow with size: all that is known is the best rate seen.
        s_per_byte = float((seconds / terms[:, 1]).min())
    errors = np.abs(terms @ np.array([latency_s, s_per_byte]) / seconds - 1)
    kinds = [sample.kind for sample in samples]
    return LinkFit(
        latency_s=float(latency_s),
        bytes_per_s=float(1 / s_per_byte),
        error=float(np.median(errors)),
        error_by_kind={
            kind: float(np.median(errors[[other == kind for other in kinds]]))
            for kind in dict.fromkeys(kinds)
        },
    )


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
