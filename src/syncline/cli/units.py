"""Figures as people read them."""

from __future__ import annotations

import re

from syncline.amounts import show_bytes, show_seconds
from syncline.errors import ConfigError

__all__ = ["parse_bytes", "show_bytes", "show_seconds"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]i?)?B?\s*", re.IGNORECASE)
_FACTORS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, flag: str) -> float:
    """Bytes from `40GB`, `512 MiB` or a plain number; `flag` is named in errors."""
    match = _SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ConfigError(
            f"{flag} is '{text}', which is no amount of memory above 0.\n"
            "Write a number and a unit, such as 40GB, 512MB or 16GiB."
        )
    unit = (match[2] or "").lower()
    base = 1024 if unit.endswith("i") else 1000
    return float(match[1]) * base ** _FACTORS.get(unit[:1], 0)
