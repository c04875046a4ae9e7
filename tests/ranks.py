"""Runs a function on real gloo ranks: persistent processes, one set for each world size."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from syncline.cluster.process_group import break_off_all

MANY_THREADS = 12


class RanksFailedError(AssertionError):
    """What each rank raised, joined."""


class RankPool:
    """Processes that wait for functions to run as ranks of a fresh process group each time."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._last_words = tempfile.TemporaryDirectory()
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, world_size, theirs, str(self._words_of(rank)))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: float) -> list[Any]:
        """The function's results by rank; kills every rank when one fails or time runs out."""
        with tempfile.TemporaryDirectory() as folder:
            job = pickle.dumps((function, arguments, str(Path(folder) / "store")))
            for pipe in self._pipes:
                pipe.send((sys.path, job))
            results, failures = self._gather(timeout_s)
            if failures:
                # Before the folder goes: a rank that still runs would write its store anew.
                self.kill()
        if failures:
            report = "\n".join(f"--- rank {rank} ---\n{text}" for rank, text in sorted(failures.items()))
            raise RanksFailedError(f"{len(failures)} of {self.world_size} ranks failed\n{report}")
        return [results[rank] for rank in range(self.world_size)]

    def _gather(self, timeout_s: float) -> tuple[dict[int, Any], dict[int, str]]:
        deadline = time.monotonic() + timeout_s
        waiting = {id(pipe): (rank, pipe) for rank, pipe in enumerate(self._pipes)}
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        while waiting:
            ready = wait([pipe for _, pipe in waiting.values()], max(0.0, deadline - time.monotonic()))
            if not ready:
                late = [rank for rank, _ in waiting.values()]
                return results, failures | dict.fromkeys(late, f"no answer within {timeout_s:g} s")
            for known in map(id, ready):
                rank, pipe = waiting.pop(known)
                try:
                    ok, value = pipe.recv()
                except EOFError:
                    ok, value = False, self._explain_death(rank)
                (results if ok else failures)[rank] = value
            if failures:
                # A peer's failure leaves the rest blocked in a collective: give them a moment to say so.
                deadline = min(deadline, time.monotonic() + 3)
        return results, failures

    @property
    def alive(self) -> bool:
        """Whether every rank can take another function."""
        return all(process.is_alive() for process in self._processes)

    def kill(self) -> None:
        """Ends every rank at once."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._last_words.cleanup()

    def _words_of(self, rank: int) -> Path:
        return Path(self._last_words.name) / f"rank-{rank}"

    def _explain_death(self, rank: int) -> str:
        process = self._processes[rank]
        process.join(5)
        code = process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"the process died ({how})\n{self._words_of(rank).read_text()}"


def default_store() -> dist.Store:
    """Where ranks can meet without a collective, for tests that break their connections."""
    return dist.distributed_c10d._get_default_store()


def part() -> None:
    """End the group as soon as all ranks have come here, whatever is under way in it."""
    here = dist.PrefixStore("parting", default_store())
    here.set(str(dist.get_rank()), "")
    here.wait([str(rank) for rank in range(dist.get_world_size())])
    break_off_all()
    dist.destroy_process_group()


def _serve(rank: int, world_size: int, pipe: Connection, last_words: str) -> None:
    with Path(last_words).open("w") as words:
        faulthandler.enable(words)
        _serve_jobs(rank, world_size, pipe)


def _serve_jobs(rank: int, world_size: int, pipe: Connection) -> None:
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
    )
    torch.set_num_threads(1)
    while True:
        try:
            path, job = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, _run(rank, world_size, path, job)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def _run(rank: int, world_size: int, path: list[str], job: bytes) -> Any:
    sys.path[:] = path
    function, arguments, store_path = pickle.loads(job)
    store = dist.FileStore(store_path, world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60)
    )
    try:
        # A rank that is done before another has connected would break that one's connection.
        dist.barrier()
        result = function(*arguments)
        # Nor may it leave while another still reads what it has sent.
        if dist.is_initialized():
            dist.barrier()
        return result
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()
        _drop_groups()


def _forget_meshes() -> None:
    """Meshes over the same ranks are equal to DTensor's cache, but their groups end with the job."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()


def _drop_groups() -> None:
    """Let go of process groups that garbage still holds: each has threads that wake up all the time."""
    threads = Path("/proc/self/task")
    if threads.exists() and len(list(threads.iterdir())) > MANY_THREADS:
        gc.collect()
