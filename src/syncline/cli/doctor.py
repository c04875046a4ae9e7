"""`syncline doctor`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from syncline.cli.units import show_bytes
from syncline.training.diagnosis import Diagnosis, diagnose


def doctor(*, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Show the machine, the torch build, its backends, and which strategies can run here and why not.

    Parameters
    ----------
    json:
        Print one JSON document on stdout.
    """
    diagnosis = diagnose()
    if json:
        print(json_module.dumps(asdict(diagnosis), indent=2))
    else:
        _show(diagnosis, Console())


def _show(diagnosis: Diagnosis, console: Console) -> None:
    machine = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    machine.add_row("Syncline", diagnosis.syncline)
    machine.add_row("Python", diagnosis.python)
    machine.add_row("torch", diagnosis.torch)
    machine.add_row("devices", f"{diagnosis.device_count} x {diagnosis.device}")
    machine.add_row("cores", str(diagnosis.cores))
    if diagnosis.memory_bytes is not None:
        machine.add_row("memory", show_bytes(diagnosis.memory_bytes))
    machine.add_row("backends", ", ".join(diagnosis.backends))
    console.print(machine)
    table = Table("can run", "what", "note", title="Here", title_justify="left")
    for item in [*diagnosis.strategies, *diagnosis.features]:
        table.add_row(
            "[green]yes" if item.available else "[red]no",
            escape(item.name),
            escape(item.reason or item.summary),
        )
    console.print(table)
