"""Lengths that are given in steps, or as a share of the run."""

from __future__ import annotations

from syncline.errors import StrategyError


def check_length(strategy: str, key: str, length: float, *, least: int = 0) -> None:
    """Refuse what is neither a number of steps nor a share of a run."""
    is_share = isinstance(length, float)
    if length < least or (is_share and not 0 <= length < 1):
        raise StrategyError(
            f"{strategy}: {key} is {length}; give a whole number of steps, at least {least}, "
            "or a share of the run such as 0.05."
        )


def in_steps(strategy: str, key: str, length: float, steps: int | None, *, least: int = 0) -> int:
    """A length as a number of steps."""
    if isinstance(length, int):
        return length
    if steps is None:
        raise StrategyError(
            f"{strategy}: {key}={length} is a share of the run, but how long the run is was not told.\n"
            f"Give {key} in steps, or tell `parallelize` the number of steps."
        )
    return max(least, round(length * steps))
