"""Checks that the configurations of several models share; each raises ValueError with the numbers."""

from __future__ import annotations

from typing import Any


def require_positive(config: Any, *names: str) -> None:
    """The named fields are at least 1."""
    for name in names:
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{name} is {value}, it must be at least 1.")


def require_fraction(config: Any, *names: str) -> None:
    """The named fields are probabilities below 1."""
    for name in names:
        value = getattr(config, name)
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name} is {value}, it must be at least 0 and less than 1.")


def require_multiple(config: Any, name: str, of: str) -> None:
    """The first field is a multiple of the second."""
    value, divisor = getattr(config, name), getattr(config, of)
    if value % divisor:
        raise ValueError(f"{name} is {value}, which is not a multiple of {of} ({divisor}).")
