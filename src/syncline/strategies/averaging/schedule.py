"""When nodes exchange: the phases of a run, and how the rates of an exchange follow the loss. Pure.

A run warms up (every step blocking), cycles (an exchange starts every B steps and arrives W steps later),
and cools down (blocking again). The mean training loss is reviewed now and then. When it has not fallen
to 95 % of its best in three reviews in a row, B and L are halved and W is lowered by one; from B = 1 they
start over from the reset value R as B = R, L = W = R / 4. This is DASO's schedule, with reviews in place
of epochs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

IMPROVED = 0.95
PATIENCE = 2
PIECES = 16
"""Into so many pieces weights are cut where they may go in turns."""
MOST_WAIT = 64
"""An average that arrives later than this is of little use, however slow the link."""
STALE = 2
"""With `auto` an average is no older than so many steps, unless the smallest part takes longer to arrive."""
RARE = 4
"""With `auto` and a flat loss, exchanges that are costly to ranks themselves start once in so many steps."""
HANDLING = 0.03
"""With `auto` and a flat loss, exchanges that take more than this share of a node's time are costly, unless
data parallelism would stand still for longer."""
BACKWARD = 2 / 3
"""Of a step: data parallelism hides no more of its exchange."""
_ROUNDING = 1e-6


class Phase(Enum):
    """What a step does between nodes."""

    BLOCKING = "blocking"
    CYCLING = "cycling"


@dataclass(frozen=True, slots=True)
class Rates:
    """How often and how late, in steps."""

    sync_every: int
    """B: from one start to the next."""
    wait: int
    """W: from a start to its merge."""
    local_skip: int = 1
    """L: gradients are averaged inside a node in one of so many steps."""
    pieces: int = PIECES
    """How many pieces of the weights go with one exchange; all, but with `auto`."""

    def tightened(self, reset: int) -> Rates:
        """What follows a plateau."""
        if self.sync_every > 1:
            return Rates(self.sync_every // 2, max(1, self.wait - 1), max(1, self.local_skip // 2)).fitting()
        return Rates(reset, max(1, reset // 4), max(1, reset // 4))

    def fitting(self) -> Rates:
        """The same with an average that arrives before the next but one starts."""
        return Rates(self.sync_every, min(self.wait, self.sync_every), self.local_skip)


@dataclass(slots=True)
class Plateau:
    """Notices a loss that no longer falls."""

    best: float = math.inf
    bad_reviews: int = 0

    def review(self, loss: float) -> bool:
        """Take in a loss; says whether it is time to act, and starts counting anew if so."""
        limit = self.best * IMPROVED if self.best > 0 else self.best * (2 - IMPROVED)
        if loss < limit:
            self.best, self.bad_reviews = loss, 0
            return False
        self.bad_reviews += 1
        if self.bad_reviews <= PATIENCE:
            return False
        self.bad_reviews = 0
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The phases of a run by the number of the step, counted from 1."""

    warm_up: int
    cool_down: int
    steps: int | None
    """How long the run is; without it there is no cool-down."""

    def of(self, step: int) -> Phase:
        """The phase of a step."""
        cools = self.steps is not None and step > self.steps - self.cool_down
        return Phase.BLOCKING if step <= self.warm_up or cools else Phase.CYCLING

    def ends_cycling(self, step: int) -> bool:
        """Whether nodes must be equal after this step: it is the last one of cycling, or of the run."""
        is_last = step == self.steps
        return self.of(step) is Phase.CYCLING and (is_last or self.of(step + 1) is Phase.BLOCKING)


@dataclass(slots=True, kw_only=True)
class CycleSchedule:
    """The rates now, and the place in the cycle."""

    rates: Rates
    reset: int
    skips: bool = True
    """Whether L may grow above 1."""
    auto: bool = False
    """Choose B and W by what exchanges take, instead of by the paper's table."""
    plateau: Plateau = field(default_factory=Plateau)
    place: int = 0
    """Steps since the cycle began, that is since an exchange started."""
    wanted: Rates | None = None
    """What to change to as soon as nothing is under way."""
    exchange_steps: float | None = None
    """How many steps all weights take on the link, as the last review found; None before that."""
    handling_steps: float = 0.0
    """How many steps a node works on an exchange of all weights, as the last review found."""
    gradient_steps: float = 0.0
    """How many steps gradients take on the link, sent as data parallelism does; 0 without a warm-up."""
    is_tight: bool = False
    """With `auto`: whether the loss has flattened, so that nodes talk more often."""

    def review(
        self, loss: float, exchange_steps: float | None = None, handling_steps: float | None = None
    ) -> None:
        """Take in the mean loss since the last review, and how many steps all weights take.

        Args:
            loss: The mean over ranks.
            exchange_steps: On the link; None if no exchange has ended since.
            handling_steps: Of a node's own time; None if nodes worked on none since.
        """
        is_flat = self.plateau.review(loss)
        self.exchange_steps = self.exchange_steps if exchange_steps is None else exchange_steps
        self.handling_steps = self.handling_steps if handling_steps is None else handling_steps
        if not self.auto:
            if is_flat:
                tighter = (self.wanted or self.rates).tightened(self.reset)
                self.wanted = tighter if self.skips else replace(tighter, local_skip=1)
            return
        self.is_tight = self.is_tight or is_flat or self.plateau.bad_reviews > 0
        if exchange_steps is not None:
            tight = tight_rates(exchange_steps, self.handling_steps, self.gradient_steps)
            self.wanted = tight if self.is_tight else hiding_rates(exchange_steps)

    def arrives_within(self, steps: int, pieces: int) -> bool:
        """Whether so many pieces are known to arrive in so many steps."""
        return self.exchange_steps is not None and _steps_taken(self.exchange_steps, pieces) <= steps

    def settle(self) -> None:
        """Change to the wanted rates; to be called only while nothing is under way."""
        if self.wanted is not None and self.wanted != self.rates:
            self.rates, self.place = self.wanted, 0
        self.wanted = None

    def starts_now(self) -> bool:
        """Whether an exchange starts after this step."""
        return self.place % self.rates.sync_every == 0

    def syncs_node_now(self) -> bool:
        """Whether a node's ranks become equal in this step: one in L, and whenever an exchange starts."""
        return self.place % self.rates.local_skip == 0 or self.starts_now()

    def advance(self) -> None:
        """Go to the next step."""
        self.place = (self.place + 1) % math.lcm(self.rates.sync_every, self.rates.local_skip)

    def state(self) -> dict[str, Any]:
        """All of it as plain numbers."""
        return asdict(self)

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> CycleSchedule:
        """What `state` gave."""
        wanted = state["wanted"]
        return cls(
            **state
            | {
                "rates": Rates(**state["rates"]),
                "plateau": Plateau(**state["plateau"]),
                "wanted": None if wanted is None else Rates(**wanted),
            }
        )


def hiding_rates(exchange_steps: float) -> Rates:
    """The rates at which exchanges hide behind steps, when all weights together take so many of them.

    What takes more than two steps goes in pieces, as many at a time as arrive within two: stale averages cost
    more than rare ones. With two steps to arrive in, one that needs a single step is told from one
    that needs both, so that a faster link is noticed. The link rests for as long as it works at least; on a
    fast one longer, for even an exchange that nobody waits for takes computing time from the steps.
    """
    pieces = min(PIECES, max(1, _arriving_in_time(exchange_steps)))
    wait = min(MOST_WAIT, _steps_taken(exchange_steps, pieces))
    return Rates(2 * max(wait, STALE), wait, pieces=pieces)


def tight_rates(exchange_steps: float, handling_steps: float = 0.0, gradient_steps: float = 0.0) -> Rates:
    """The rates at which all weights are averaged in every other step, even where that means to wait.

    What a loss that falls slowly would lose by rarer averages costs more steps than the waiting, which is
    half of what averaging in every step would take. Only where all weights arrive in time, and ranks would
    so often spend more of their own time on them than data parallelism would stand still, does an exchange
    start every `RARE` steps.
    """
    wait = min(STALE, _steps_taken(exchange_steps, PIECES))
    bearable = HANDLING + max(0.0, gradient_steps - BACKWARD)
    is_costly = handling_steps > STALE * bearable and _arriving_in_time(exchange_steps) >= PIECES
    return Rates(RARE if is_costly else STALE, wait)


def _arriving_in_time(exchange_steps: float) -> int:
    """How many pieces arrive before they are stale."""
    return int(STALE * PIECES / max(exchange_steps, 1e-9) + _ROUNDING)


def _steps_taken(exchange_steps: float, pieces: int) -> int:
    """In how many whole steps so many pieces arrive."""
    return max(1, math.ceil(exchange_steps * pieces / PIECES - _ROUNDING))
