"""`syncline evaluate`."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from syncline.cli.plan_view import grid
from syncline.errors import ConfigError
from syncline.training.evaluation import Evaluation, evaluate_run

FLAG = Parameter(negative="", show_default=False)


def evaluate(
    run: Path,
    /,
    *,
    heads: Annotated[bool, FLAG] = False,
    batches: int | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Evaluate the newest checkpoint of a run, in this process.

    Parameters
    ----------
    run:
        The run's folder.
    heads:
        Of a run with strategy `local`: the accuracy of each block's head by itself, and of all together.
        A head that predicts well enough is a place to stop early.
    batches:
        Global batches of the evaluation split. Default: all.
    json:
        Print one JSON document on stdout.
    """
    if batches is not None and batches < 1:
        raise ConfigError(f"--batches is {batches}; it must be at least 1.")
    # What the user's own code prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = evaluate_run(run, heads=heads, batches=batches)
    if json:
        print(json_module.dumps(asdict(found), indent=2))
    else:
        _show(found, Console())


def _show(found: Evaluation, to: Console) -> None:
    to.print(
        f"{found.checkpoint}: loss {found.eval_loss:.4f} on {found.samples} samples",
        markup=False,
        highlight=False,
    )
    if found.heads:
        table = grid("head", "accuracy", "loss", title="")
        table.title = None
        for score in found.heads:
            table.add_row(escape(score.name), f"{score.accuracy:.2%}", f"{score.loss:.4f}")
        to.print(table)
