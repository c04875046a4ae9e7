"""A bar on stderr while the ranks of a measurement work."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from syncline.cluster.timing import Announce


@contextmanager
def show_progress(name: str, words: str, *, shown: bool) -> Generator[Announce]:
    """A bar where someone can watch it; elsewhere one line that says what goes on."""
    watched = sys.stderr.isatty()
    bar = Progress(
        TextColumn(f"[bold]{name}"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not (shown and watched),
    )
    task = bar.add_task("starting", total=None)

    def announce(what: str, done: int, parts: int) -> None:
        bar.update(task, description=what, completed=done, total=parts)

    if shown and not watched:
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    with bar:
        yield announce
