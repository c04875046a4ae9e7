"""Ranks that `srun` starts, with a stand-in for `scontrol`."""

import os

import pytest

from syncline.cluster.rank import current_rank
from syncline.errors import ClusterError
from syncline.launch.slurm import apply_slurm_variables, slurm_variables


@pytest.fixture
def task(tmp_path):
    """The environment of task 5 of 7, the second one on the second of three nodes."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames n[3-5]" ] && printf "n3\\nn4\\nn5\\n"\n')
    scontrol.chmod(0o755)
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "1234567",
        "SLURM_STEP_ID": "2",
        "SLURM_GTIDS": "4,5",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "2",
        "SLURM_NTASKS": "7",
        "SLURM_NNODES": "3",
        "SLURM_TASKS_PER_NODE": "2(x2),3",
        "SLURM_JOB_NODELIST": "n[3-5]",
    }


def test_a_task_becomes_a_rank(task):
    variables = slurm_variables(task)
    assert variables is not None
    rank = current_rank(variables)
    assert (rank.index, rank.world_size, rank.local_index, rank.local_world_size) == (5, 7, 1, 3)
    assert variables["MASTER_ADDR"] == "n3"
    assert 10_000 <= int(variables["MASTER_PORT"]) < 30_000


def test_steps_and_jobs_differ_in_port(task):
    def port(**changes):
        variables = slurm_variables(task | changes)
        assert variables is not None
        return variables["MASTER_PORT"]

    assert len({port(), port(SLURM_STEP_ID="3"), port(SLURM_JOB_ID="1234568")}) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "0"},
        {"SLURM_NTASKS": "1"},
        {"SLURM_PROCID": None},
        {"SLURM_PTY_PORT": "4000"},
        {"SLURM_STEP_ID": None},
    ],
)
def test_what_is_no_rank_of_slurm(task, changes):
    environment = {key: value for key, value in (task | changes).items() if value is not None}
    assert slurm_variables(environment) is None


def test_apply(task, monkeypatch):
    for key, value in task.items():
        monkeypatch.setenv(key, value)
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(key, "")
        monkeypatch.delenv(key)
    assert apply_slurm_variables()
    assert (os.environ["RANK"], os.environ["MASTER_ADDR"]) == ("5", "n3")
    assert not apply_slurm_variables()


def test_no_scontrol(task):
    with pytest.raises(ClusterError, match="Set MASTER_ADDR"):
        slurm_variables(task | {"PATH": "/nowhere"})


def test_no_nodes(task):
    del task["SLURM_JOB_NODELIST"]
    with pytest.raises(ClusterError, match="SLURM_JOB_NODELIST"):
        slurm_variables(task)
