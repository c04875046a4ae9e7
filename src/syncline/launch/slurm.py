"""Joins a run that Slurm's `srun` started: its variables become those of torchrun."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from syncline.errors import ClusterError

FIRST_PORT = 10_000
PORTS = 20_000
"""Below the ports that Linux gives to outgoing connections."""


def slurm_variables(environment: Mapping[str, str] | None = None) -> dict[str, str] | None:
    """The torchrun variables of a task that `srun` started; None when it did not start this process.

    A batch script itself, an interactive shell (`srun --pty`) and a step with one task are no ranks.

    Args:
        environment: Read instead of this process's own.

    Raises:
        ClusterError: Slurm cannot tell the nodes' names.
    """
    variables = os.environ if environment is None else environment
    if not _is_rank_of_step(variables):
        return None
    return {
        "RANK": variables["SLURM_PROCID"],
        "WORLD_SIZE": variables["SLURM_NTASKS"],
        "LOCAL_RANK": variables.get("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(_tasks_of_node(variables)),
        "MASTER_ADDR": variables.get("MASTER_ADDR") or _first_host(variables),
        "MASTER_PORT": variables.get("MASTER_PORT") or str(_port(variables)),
    }


def apply_slurm_variables() -> bool:
    """Set the torchrun variables when `srun` started this process; says whether it did."""
    variables = slurm_variables()
    os.environ.update(variables or {})
    return variables is not None


def _is_rank_of_step(variables: Mapping[str, str]) -> bool:
    if "RANK" in variables or "SLURM_PROCID" not in variables:
        return False
    # Slurm gives a batch script a task's variables too, though not those of a step.
    is_batch_script = "SLURM_GTIDS" in variables and "SLURM_STEP_ID" not in variables
    is_shell = "SLURM_PTY_PORT" in variables
    return not is_batch_script and not is_shell and int(variables.get("SLURM_NTASKS", "1")) > 1


def _tasks_of_node(variables: Mapping[str, str]) -> int:
    """Read `4(x2),3`: two nodes with 4 tasks, then one with 3."""
    text = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE")
    if text is None:
        return int(variables["SLURM_NTASKS"]) // int(variables.get("SLURM_NNODES", "1"))
    by_node = [
        int(tasks)
        for tasks, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        for _ in range(int(repeat or "1"))
    ]
    return by_node[int(variables.get("SLURM_NODEID", "0"))]


def _first_host(variables: Mapping[str, str]) -> str:
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if nodes is None:
        raise ClusterError(
            "srun started this process, but SLURM_JOB_NODELIST does not say on which nodes.\n"
            "Set MASTER_ADDR to the host of task 0."
        )
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        # Slurm's own variables may change what scontrol prints, hence the caller's environment.
        shown = subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ClusterError(
            f"`{' '.join(command)}` does not tell the nodes' names: {error}\n"
            "Set MASTER_ADDR to the host of task 0."
        ) from error
    return shown.stdout.split()[0]


def _port(variables: Mapping[str, str]) -> int:
    job, step = (int(variables.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return FIRST_PORT + (job * 7 + step) % PORTS
