"""`syncline bench`."""

from __future__ import annotations

import contextlib
import json as json_module
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from syncline.benchmark.comparison import check_comparable
from syncline.benchmark.demo import demo_suite
from syncline.benchmark.entries import contests, make_entries
from syncline.benchmark.folder import PARENT, default_folder, newest_folder
from syncline.benchmark.protocol import Ran, run_suite
from syncline.benchmark.report.page import REPORT_FILE, check_packages
from syncline.benchmark.suite import Suite
from syncline.benchmark.suite_file import narrow, read_suite, with_settings
from syncline.benchmark.verdict import judge
from syncline.benchmark.writing import write_report
from syncline.cli.bench_view import show_contests
from syncline.cli.report import EXIT_WORSE, show_comparison
from syncline.errors import ConfigError

FLAG = Parameter(negative="", show_default=False)


def bench(
    suite: Path | None = None,
    /,
    *,
    only: str | None = None,
    ranks: int | None = None,
    resume: Annotated[bool, FLAG] = False,
    config: Path | None = None,
    compare: Path | None = None,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Train with every strategy on the same work, and set side by side what each costs and why.

    Examples:

      syncline bench

      syncline bench --only data,sharded,planned -o mine

      syncline bench benchmarks/suites/survey.toml

      syncline bench suite.toml --resume -o bench/suite-001

      syncline bench suite.toml --compare bench/suite-001

    Parameters
    ----------
    suite:
        A TOML file: models, strategies, world_sizes, clusters, seeds, batch, [budget], target_loss and
        [train]. Default: all strategies on a small language model, on two ranks.
    only:
        Some of the suite's strategies, separated by commas; a name means all of that name.
    ranks:
        How many ranks, in place of the suite's world_sizes.
    resume:
        Go on with the benchmark in the folder given with -o: cells that are done are not run again.
    config:
        A TOML file with settings of the runs (data, optimizer, schedule, precision, ...), as for train.
    compare:
        The folder of an older benchmark: show what changed, and exit 3 when something got worse beyond noise.
    output:
        The benchmark's folder. Default: a new one below `bench`.
    json:
        Print rows and verdicts as one JSON document on stdout.
    """
    check_packages()
    chosen = _suite(suite, only, ranks, config)
    if compare is not None:
        check_comparable(chosen, compare)
    command = _command(suite, only=only, ranks=ranks, config=config, compare=compare, json=json)
    if resume and output is None:
        raise ConfigError(_which_folder(command, newest_folder(chosen)))
    folder = output or default_folder(chosen)
    # What the user's own code prints has no place beside the result.
    with contextlib.redirect_stdout(sys.stderr):
        ran = run_suite(chosen, folder, resume=resume)
    if ran.signal_number is not None:
        print(f"stopped; go on with: {_go_on(command, folder)}", file=sys.stderr)
        return 128 + ran.signal_number
    write_report([folder], folder / REPORT_FILE)
    _show(ran, as_json=json)
    if compare is not None:
        worse = show_comparison(compare, folder, Console(stderr=True))
        return EXIT_WORSE if worse else 0
    return 0


def _command(suite: Path | None, **flags: object) -> list[str]:
    """The command that was given, without what says where."""
    words = ["syncline", "bench", *([] if suite is None else [str(suite)])]
    for name, value in flags.items():
        if value not in (None, False):
            words += [f"--{name}", *([] if value is True else [str(value)])]
    return words


def _go_on(command: Sequence[str], folder: Path) -> str:
    return shlex.join([*command, "--resume", "-o", str(folder)])


def _which_folder(command: Sequence[str], newest: Path | None) -> str:
    if newest is None:
        return (
            "--resume goes on with the benchmark in the folder given with -o, but none is given.\n"
            f"There is none of this suite below {PARENT}; leave --resume out to start one."
        )
    return (
        "--resume goes on with the benchmark in the folder given with -o, but none is given.\n"
        f"The newest of this suite is {newest}: {_go_on(command, newest)}"
    )


def _suite(path: Path | None, only: str | None, ranks: int | None, config: Path | None) -> Suite:
    suite = demo_suite() if path is None else read_suite(path)
    names = _names(only) if only else ()
    suite = narrow(suite, only=names, ranks=ranks)
    return suite if config is None else with_settings(suite, config)


def _names(text: str) -> list[str]:
    """Names separated by commas, where what follows a colon may hold commas of its own."""
    names: list[str] = []
    for part in text.split(","):
        if names and ":" in names[-1] and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part.strip())
    return names


def _show(ran: Ran, *, as_json: bool) -> None:
    found = [(judge(place, members), members) for place, members in contests(make_entries(ran.rows))]
    if as_json:
        told = {
            "schema": 1,
            "folder": str(ran.folder),
            "report": str(ran.folder / REPORT_FILE),
            "verdicts": [
                {"place": asdict(one.place), "headline": one.headline, "details": one.details}
                for one, _ in found
            ],
            "rows": [asdict(row) for row in ran.rows],
        }
        print(json_module.dumps(told, indent=2))
        return
    show_contests(found, Console())
    print(f"The report: {ran.folder / REPORT_FILE}")
