"""Every exception that a user can meet.

Each message says what was given, why it cannot work (with numbers) and what to do. The command line
shows one of these as a panel and exits 2; anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SynclineError(Exception):
    """A mistake or a limit that the user can act upon."""

    title = "Syncline cannot go on"


class ConfigError(SynclineError):
    """A setting, a flag or a file of settings is wrong."""

    title = "Wrong setting"


class ModelError(SynclineError):
    """The model to train cannot be found, built or called."""

    title = "Wrong model"


class DataError(SynclineError):
    """The data to train on cannot be found, read or used."""

    title = "Wrong data"


class CaptureError(SynclineError):
    """The model's computation graph cannot be captured, so it cannot be planned."""

    title = "The model cannot be captured"


class StrategyError(SynclineError):
    """The strategy does not exist, or cannot run as asked."""

    title = "Wrong strategy"


class ClusterError(SynclineError):
    """The cluster, real or emulated, cannot be described or started."""

    title = "Wrong cluster"


class PlanningError(SynclineError):
    """The search for a plan cannot be carried out as asked."""

    title = "Cannot plan"


class InfeasiblePlanError(PlanningError):
    """No plan fits the memory of a device."""

    title = "Nothing fits"


class CheckpointError(SynclineError):
    """A checkpoint is missing, broken, or of another model."""

    title = "Wrong checkpoint"


class RunFolderError(SynclineError):
    """The run's folder cannot be used."""

    title = "Wrong folder"


class NonFiniteLossError(SynclineError):
    """The loss became NaN or infinite."""

    title = "Training diverged"


class MissingExtraError(SynclineError):
    """A package that only an extra installs is needed."""

    title = "Missing package"

    def __init__(self, package: str, extra: str, need: str) -> None:
        super().__init__(
            f"{need} needs the package '{package}', which is not installed.\n"
            f"Install it with: pip install 'syncline[{extra}]'"
        )


class RankFailedError(SynclineError):
    """A rank of a run died or raised."""

    title = "A rank failed"

    def __init__(self, message: str, *, rank: int, exit_code: int) -> None:
        super().__init__(message)
        self.rank = rank
        self.exit_code = exit_code


class NodeLostError(SynclineError):
    """A node of the run is gone, and the run cannot go on without it."""

    title = "A node is lost"


def unknown_name(kind: str, given: str, known: Iterable[str]) -> str:
    """The message for a name that is not in a registry: what exists, and the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"There is no {kind} '{given}'.{hint}\nKnown: {', '.join(names)}."
