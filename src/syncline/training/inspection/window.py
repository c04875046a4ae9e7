"""Which steps of a run are taken apart, and so do not count in its step times."""

from __future__ import annotations

from dataclasses import dataclass

from syncline.errors import ConfigError
from syncline.training.measurements import WARM_UP_STEPS

_BESIDES = 3
"""One step before in which ranks get used to being watched, one for memory, one to find their pace again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From `first` on: a step to settle, `timed` steps, one for memory, and a step to settle again."""

    first: int
    timed: int

    @classmethod
    def of(cls, *, inspect: int, steps: int) -> Window | None:
        """In the middle of the run, where nothing is special; None when no step is to be inspected."""
        if not inspect:
            return None
        length = inspect + _BESIDES
        if steps < WARM_UP_STEPS + length + 1:
            raise ConfigError(
                f"inspect is {inspect}: with warm-up and the steps around it that takes "
                f"{WARM_UP_STEPS + length + 1} steps, but the run has {steps}.\n"
                "Use more --steps, or a smaller inspect."
            )
        return cls(first=max(WARM_UP_STEPS + 1, (steps - length) // 2 + 1), timed=inspect)

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    @property
    def last(self) -> int:
        """The last step that is disturbed."""
        return self.first + self.timed + _BESIDES - 1

    @property
    def memory_step(self) -> int:
        """The step in which memory is counted by kind."""
        return self.first + self.timed + 1

    def is_timed(self, step: int) -> bool:
        """Whether the time of a step is taken apart."""
        return self.first < step <= self.first + self.timed

    def is_traced(self, step: int) -> bool:
        """Whether the profiler is on."""
        return self.first <= step <= self.first + self.timed
