"""Figures as people read them."""

from __future__ import annotations

import re

from syncline.errors import ConfigError

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


def show_bytes(count: float) -> str:
    """Bytes in decimal units: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def show_seconds(seconds: float) -> str:
    """A duration: `85 ms`, `2.41 s`, `3:20 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{int(seconds // 60)}:{int(seconds % 60):02d} min"
