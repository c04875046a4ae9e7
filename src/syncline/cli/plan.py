"""`syncline plan`."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from syncline.calibration.measure import measure as measure_here
from syncline.calibration.site import Site, find_site
from syncline.cli.explain_view import Comparison, show_explanation
from syncline.cli.explain_view import lines as explanation_lines
from syncline.cli.pase_view import pase_values, show_pase
from syncline.cli.plan_config import PlanConfig, resolve
from syncline.cli.plan_stages import with_stages
from syncline.cli.plan_view import show_plan
from syncline.cli.units import parse_bytes
from syncline.cluster.presets import cluster_from
from syncline.cluster.topology import Cluster
from syncline.graph.opgraph import OpGraph
from syncline.launch.stopping import LaunchStopped
from syncline.planning.breakdown import op_costs
from syncline.planning.explanation import Explanation
from syncline.planning.explanation import explain as explain_plan
from syncline.planning.layers import Section, sections
from syncline.planning.page import check_page_packages, plan_page
from syncline.planning.pase import plan_pase
from syncline.planning.plan_file import plan_values, save_plan, write_whole
from syncline.planning.planner import Planned, Request, make_plan
from syncline.planning.repricing import Repricer
from syncline.planning.sent_bytes import sent_bytes
from syncline.training.planned_runs import last_run
from syncline.workloads.load import load_workload
from syncline.workloads.planning import capture_workload

FLAG = Parameter(negative="", show_default=False)
DEFAULT_BATCH = 64
CHEAP_CAPTURE_S = 3.0
"""A model that takes longer to capture is not captured again to explain what another batch would change."""


def plan(
    model: str | None = None,
    /,
    *,
    cluster: str | None = None,
    batch: int | None = None,
    memory: str | None = None,
    allow_inexact: Annotated[bool, FLAG] = False,
    cost: str | None = None,
    measure: Annotated[bool, FLAG] = False,
    explain: Annotated[bool, FLAG] = False,
    html: Path | None = None,
    config: Path | None = None,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("plan.json"),
    json: Annotated[bool, FLAG] = False,
) -> int:
    """Find the fastest exact way to train a model on a cluster, and show what else was weighed.

    Examples:

      syncline plan gpt2-small --cluster h100-dgx:2

      syncline plan alexnet --cluster gtx1080ti-pcie:8 --batch 512 --explain

      syncline plan llama-7b --cluster a100-dgx --memory 40GB --html plan.html

      syncline plan gpt2-tiny --cluster 2x1@200mbit --measure

      syncline plan my_package.my_module:build --cluster cluster.toml

    Parameters
    ----------
    model:
        A built-in model (`name` or `name:key=value,...`), or `package.module:function` that returns a
        module or a Workload.
    cluster:
        A cluster.toml, a preset such as `a100-dgx:4` (4 nodes), `2x4` (2 nodes like this machine with 4
        devices each), or `2x2@200mbit` (nodes emulated on this machine). Default: local, this machine.
    batch:
        Global batch size, over all devices. Default: 64, or one sample a device if that is more.
    memory:
        The limit of a device, such as 40GB. Default: all that it has.
    allow_inexact:
        Also list training in stages: pipelines, and `local`, which trains blocks of layers with losses of
        their own and so learns differently.
    cost:
        What a plan costs: `syncline` (seconds on this cluster) or `pase` (the paper's flat network and
        formulas). Default: syncline.
    measure:
        Time the ops that matter, at the shapes that devices get, and the links on this machine first, with as
        many ranks as will run on it. Timings are kept for the next time.
    explain:
        Say why: for the costliest ops the next best split, what limits the step, and what would have to
        change for each alternative to win. Beside the prediction stands what the last run of the same plan
        in runs/ came to.
    html:
        Write a page that draws the plan, and where time and memory go.
    config:
        A TOML file with these and other settings: [[pin]] tables (ops, parameters, split, whole,
        data_axes), [input], seed, proposals, optimizer_state_factor, pase_ratio. Flags win over it.
    output:
        Where to save the plan.
    json:
        Print one JSON document on stdout.
    """
    flags = {"model": model, "cluster": cluster, "batch": batch, "memory": memory, "cost": cost}
    settings = resolve(flags, config)
    if html is not None:
        check_page_packages()
    limit = None if settings.memory is None else parse_bytes(settings.memory, "--memory")
    site = find_site(settings.cluster) if measure else None
    where = site.cluster if site is not None else cluster_from(settings.cluster)
    size = settings.batch or max(DEFAULT_BATCH, where.world_size)
    began = time.perf_counter()
    # What the user's own code prints has no place beside the plan.
    with contextlib.redirect_stdout(sys.stderr):
        graph = _capture(settings, size)
    capture_s = time.perf_counter() - began
    if settings.cost == "pase":
        _pase(graph, settings, where.world_size, json=json)
        return 0
    request = Request(
        model=settings.model,
        batch=size,
        memory_bytes=limit,
        pins=settings.pin,
        state_factor=settings.optimizer_state_factor,
        proposals=settings.proposals,
    )
    if site is not None:
        try:
            where, request = _measured(graph, site, request)
        except LaunchStopped as stopped:
            return 128 + stopped.signal_number
    planned = make_plan(graph, where, request)
    if allow_inexact:
        planned = with_stages(planned, graph, where, request)
    save_plan(planned.plan, output)
    again = (lambda size: _capture(settings, size)) if capture_s <= CHEAP_CAPTURE_S else None
    told = _Told(planned, graph, where, capture_s)
    if explain:
        told.explain(settings, again)
    if html is not None:
        write_whole(html, told.page())
    if json:
        print(json_module.dumps(told.values(), indent=2))
    else:
        told.show(Console(), output, html)
    return 0


def _capture(settings: PlanConfig, batch: int) -> OpGraph:
    workload = load_workload(settings.model, seed=settings.seed, input=settings.input, device="meta")
    return capture_workload(workload, batch)


def _measured(graph: OpGraph, site: Site, request: Request) -> tuple[Cluster, Request]:
    """The cluster with the figures of this machine, and the request with timed ops."""
    measured = measure_here(graph, site, request)
    return measured.cluster, replace(request, calibration=measured.calibration)


def _pase(graph: OpGraph, settings: PlanConfig, devices: int, *, json: bool) -> None:
    found = plan_pase(graph, devices=devices, ratio=settings.pase_ratio)
    if json:
        print(json_module.dumps(pase_values(found, settings.model), indent=2))
    else:
        show_pase(found, settings.model, Console())


def _compare(planned: Planned) -> Comparison:
    prediction = planned.plan.prediction
    return Comparison(
        predicted_step_s=prediction.step_s,
        predicted_memory_bytes=prediction.memory.total,
        predicted_sent_bytes=sent_bytes(Repricer(planned)),
        run=last_run(planned.plan),
    )


@dataclass
class _Told:
    """All that there is to say about a plan."""

    planned: Planned
    graph: OpGraph
    cluster: Cluster
    capture_s: float
    explanation: Explanation | None = None
    comparison: Comparison | None = None

    def explain(self, settings: PlanConfig, recapture: Callable[[int], OpGraph] | None) -> None:
        """Find out why the plan is as it is, and what the last run of it came to."""
        with contextlib.redirect_stdout(sys.stderr):
            self.explanation = explain_plan(self.planned, pins=settings.pin, recapture=recapture)
        self.comparison = _compare(self.planned)

    def values(self) -> dict[str, Any]:
        values = plan_values(self.planned.plan) | {"capture_s": self.capture_s}
        if self.explanation is not None:
            values["explanation"] = asdict(self.explanation)
        if self.comparison is not None:
            values["comparison"] = asdict(self.comparison)
        return values

    def page(self) -> str:
        why = list(explanation_lines(self.explanation)) if self.explanation else []
        return plan_page(self.planned.plan, self._by_layer, self.cluster.world_size, why)

    def show(self, console: Console, *paths: Path | None) -> None:
        show_plan(self.planned.plan, self._by_layer, self.cluster.world_size, self.capture_s, console)
        if self.explanation is not None and self.comparison is not None:
            show_explanation(self.explanation, self.comparison, console)
        saved = " and ".join(str(path) for path in paths if path is not None)
        console.print(f"saved as {saved}", markup=False, highlight=False)

    @cached_property
    def _by_layer(self) -> tuple[Section, ...]:
        return sections(self.planned.plan, self.graph, op_costs(self.planned.search, self.planned.chosen))
