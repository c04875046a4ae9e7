"""How long a step takes in the long run, and how sure that is.

Some strategies do in one of several steps what others do in each, so the median of single steps would leave
it out, and one slow moment would spoil the mean. So steps are taken in groups as long as the strategy's
period, and the median of the groups' means counts, with a bootstrap interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from syncline.strategies.protocol import Strategy

LEAST_GROUP = 4
LEAST_VALUES = 3
"""Fewer have no interval: resampling one or two values tells nothing of others."""
UNKNOWN_SPREAD = 0.1
"""What a figure without an interval is trusted to when it is judged."""
_RESAMPLES = 1000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its interval of 95 %, if there were enough values for one."""

    value: float
    interval: tuple[float, float] | None

    @property
    def spread(self) -> float | None:
        """Half the interval, relative to the figure; None without one."""
        if self.interval is None:
            return None
        low, high = self.interval
        return (high - low) / 2 / self.value if self.value else 0.0

    @property
    def noise(self) -> float:
        """The spread, or what is assumed without one."""
        return UNKNOWN_SPREAD if self.spread is None else self.spread

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or what is assumed without one."""
        assumed = ((1 - UNKNOWN_SPREAD) * self.value, (1 + UNKNOWN_SPREAD) * self.value)
        return assumed if self.interval is None else self.interval

    def per(self, count: float) -> Estimate:
        """The same for each of so many parts."""
        interval = None if self.interval is None else (self.interval[0] / count, self.interval[1] / count)
        return Estimate(value=self.value / count, interval=interval)

    def show_spread(self) -> str:
        """For people."""
        return "?" if self.spread is None else f"{self.spread:.0%}"


def period(strategy: Strategy) -> int:
    """After how many steps a strategy begins anew."""
    every = getattr(strategy, "sync_every", 1)
    return every if isinstance(every, int) else LEAST_GROUP


def group_means(step_s: Sequence[float], strategy: Strategy) -> list[float]:
    """Means of whole periods of at least four steps; of all steps when they are fewer than that."""
    cycle = period(strategy)
    size = cycle * -(-LEAST_GROUP // cycle)
    count = len(step_s) // size
    if not count:
        return [float(np.mean(step_s))] if len(step_s) else []
    return [float(np.mean(step_s[place * size : (place + 1) * size])) for place in range(count)]


def estimate(values: Sequence[float]) -> Estimate | None:
    """The median with its interval; None of nothing."""
    if not len(values):
        return None
    given = np.asarray(values, dtype=float)
    if len(given) < LEAST_VALUES:
        return Estimate(value=float(np.median(given)), interval=None)
    # Always the same draws: the same measurements give the same report.
    random = np.random.Generator(np.random.PCG64(0))
    medians = np.median(random.choice(given, size=(_RESAMPLES, len(given))), axis=1)
    low, high = np.percentile(medians, _PERCENTILES)
    return Estimate(value=float(np.median(given)), interval=(float(low), float(high)))
