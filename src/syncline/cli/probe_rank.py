"""What each rank of `syncline probe` runs: it measures, and the first rank shows how far it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from syncline.cluster.device import device_type, rank_device
from syncline.cluster.probe import ProbeSettings, probe_cluster
from syncline.cluster.probe_report import ProbeReport
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank
from syncline.cluster.timing import Announce

ENTRY = f"{__name__}:run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """What the ranks are asked to do."""

    name: str
    """What to call the cluster."""
    quick: bool
    report: str
    """The file for the first rank's report."""

    def as_argument(self) -> str:
        """The request as the one string that ranks are started with."""
        return json.dumps(asdict(self))


def run(argument: str) -> None:
    """Measure, and write the report for the process that started the ranks."""
    request = ProbeRequest(**json.loads(argument))
    report = measure(name=request.name, quick=request.quick)
    if current_rank().is_first:
        Path(request.report).write_text(json.dumps(report.as_dict()), encoding="utf-8")


def measure(*, name: str, quick: bool) -> ProbeReport:
    """Measure the cluster of the ranks that were started together with this one."""
    rank = current_rank()
    device = rank_device(rank)
    settings = ProbeSettings.quick() if quick else ProbeSettings.thorough(device_type())
    with process_group(device), _progress(shown=rank.is_first) as announce:
        return probe_cluster(rank, device, settings, name=name, announce=announce)


@contextmanager
def _progress(*, shown: bool) -> Generator[Announce]:
    """A bar on stderr where someone can watch it."""
    bar = Progress(
        TextColumn("[bold]probe"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and sys.stderr.isatty()),
    )
    task = bar.add_task("starting", total=None)

    def announce(what: str, done: int, parts: int) -> None:
        bar.update(task, description=what, completed=done, total=parts)

    if shown and not sys.stderr.isatty():
        print("probe: measuring devices and links", file=sys.stderr, flush=True)
    with bar:
        yield announce
