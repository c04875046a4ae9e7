"""What each rank of `syncline probe` runs: it measures, and the first rank shows how far it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from syncline.calibration.progress import show_progress
from syncline.cluster.device import device_type, rank_device
from syncline.cluster.probe import ProbeSettings, probe_cluster
from syncline.cluster.probe_report import ProbeReport
from syncline.cluster.process_group import process_group
from syncline.cluster.rank import current_rank

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
    progress = show_progress("probe", "measuring devices and links", shown=rank.is_first)
    with process_group(device), progress as announce:
        return probe_cluster(rank, device, settings, name=name, announce=announce)
