"""Figures as people read them."""

from __future__ import annotations


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
