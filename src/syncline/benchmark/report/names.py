"""Where the names of points stand: beside their points, and over no other name or point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 330.0, 290.0
"""Pixels of the plotting area where two figures share a line; wider ones have more room."""
_LETTER, _LINE, _POINT = 6.2, 13.0, 7.0
"""Pixels of a letter's width, of a line's height, and from a point's middle to its edge."""
_SIDES = {
    "top center": (0.0, 1.0),
    "bottom center": (0.0, -1.0),
    "middle right": (1.0, 0.0),
    "middle left": (-1.0, 0.0),
    "top right": (1.0, 1.0),
    "bottom right": (1.0, -1.0),
    "top left": (-1.0, 1.0),
    "bottom left": (-1.0, -1.0),
}
"""Plotly's words, the best first, and to which side of the point they put a name."""


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    half_width: float
    half_height: float

    def meets(self, other: _Box) -> bool:
        return (
            abs(self.x - other.x) < self.half_width + other.half_width
            and abs(self.y - other.y) < self.half_height + other.half_height
        )


def place_names(points: Sequence[tuple[float, float]], names: Sequence[str]) -> list[str | None]:
    """For each point the side of its name; None where every side is taken. The first go first.

    Args:
        points: Of figures whose axes begin at 0.
        names: What stands beside them.
    """
    x_pixels = _WIDTH / (max((x for x, _ in points), default=0.0) or 1.0)
    y_pixels = _HEIGHT / (max((y for _, y in points), default=0.0) or 1.0)
    taken = [_Box(x * x_pixels, y * y_pixels, _POINT, _POINT) for x, y in points]
    found: list[str | None] = []
    for point, name in zip(list(taken), names, strict=True):
        boxes = {side: _beside(point, name, to) for side, to in _SIDES.items()}
        free = [side for side, box in boxes.items() if not any(box.meets(other) for other in taken)]
        found.append(free[0] if free else None)
        if free:
            taken.append(boxes[free[0]])
    return found


def _beside(point: _Box, name: str, to: tuple[float, float]) -> _Box:
    half_width, half_height = len(name) * _LETTER / 2, _LINE / 2
    x = point.x + to[0] * (_POINT + half_width)
    return _Box(x, point.y + to[1] * (_POINT + half_height), half_width, half_height)
