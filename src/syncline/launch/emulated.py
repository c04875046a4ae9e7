"""Starts ranks on emulated nodes: network namespaces of this machine, joined by links of a given rate.

Each node gets a launcher of its own inside its namespace, as on a real cluster; this process starts
them, passes signals on, and ends them all when one has failed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from syncline.cluster.emulation import Emulation, parse_emulation
from syncline.errors import RankFailedError, SynclineError
from syncline.launch.failures import (
    RankFailure,
    clear_failures,
    death_text,
    failure_error,
    first_failure,
    is_mistake,
    read_failures,
    tail_text,
)
from syncline.launch.link import INTERFACE, EmulatedNode, LinkBytes, emulated_network, read_link_bytes
from syncline.launch.namespaces import check_emulation_possible, enter_command
from syncline.launch.node_task import NodeTask, encode_task, node_log_path
from syncline.launch.restarting import with_restarts
from syncline.launch.stopping import STOP_TIMEOUT_S, LaunchStopped, holding_stop_signals
from syncline.launch.supervision import Ending, supervise
from syncline.launch.variables import rank_variables

__all__ = ["Emulation", "LinkBytes", "check_emulation_possible", "launch_emulated", "parse_emulation"]

RENDEZVOUS_PORT = 29400
"""On the first node, whose ports belong to this run alone."""


def launch_emulated(
    entry: str,
    argument: str,
    *,
    emulation: Emulation,
    logs: Path,
    max_restarts: int = 0,
    survives: bool = False,
    stop_timeout_s: int = STOP_TIMEOUT_S,
) -> LinkBytes:
    """Run a function on the ranks of emulated nodes, with the torchrun variables set.

    Rank 0 keeps the terminal; every other rank writes to `logs/rank-N.log`. Ranks reach each other, and
    nothing else: there is no way out of the emulated network. It needs root, and vanishes with this
    process.

    Args:
        entry: `package.module:function`, imported in every rank and called with `argument`.
        argument: One string; what is more complex goes into a file or JSON.
        emulation: The nodes, and the rate of their links.
        logs: The folder of the ranks' logs, made when missing.
        max_restarts: How often all ranks are started again after one failed.
        survives: The ranks go on without a node that is lost, unless it is the first. Then `max_restarts`
            is how often lost nodes are started again, to join the others.
        stop_timeout_s: How long ranks may take to save and end after Ctrl-C or SIGTERM.

    Returns:
        What all ranks sent, over all starts.

    Raises:
        ClusterError: This machine cannot emulate nodes.
        SynclineError: A rank failed: its own error when it is one that the user can act upon, else
            `RankFailedError`.
        LaunchStopped: A signal ended the ranks.
    """
    check_emulation_possible()
    logs.mkdir(parents=True, exist_ok=True)
    clear_failures(logs)
    with emulated_network(emulation) as nodes:
        launch = _Launch(
            entry=entry,
            argument=argument,
            emulation=emulation,
            logs=logs.absolute(),
            stop_timeout_s=stop_timeout_s,
            nodes=nodes,
            survives=survives,
        )
        before = launch.read_bytes()
        if survives:
            launch.start(0, replacements=max_restarts)
        else:
            with_restarts(launch.start, max_restarts)
        return launch.read_bytes() - before


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    entry: str
    argument: str
    emulation: Emulation
    logs: Path
    stop_timeout_s: int
    nodes: Sequence[EmulatedNode]
    survives: bool

    def read_bytes(self) -> LinkBytes:
        counts = [read_link_bytes(node.holder) for node in self.nodes]
        return sum(counts, start=LinkBytes(inside=0, between=0))

    def start(self, restart: int, replacements: int = 0) -> None:
        """Run the ranks of all nodes once; lost ones are started again so often, where the others go on."""
        run_id = uuid.uuid4().hex
        with ExitStack() as stack:
            launchers = [
                stack.enter_context(self._launcher(self._task(node, restart, run_id), node))
                for node in self.nodes
            ]
            used = itertools.count(1)

            def replace(node: int) -> subprocess.Popen[bytes] | None:
                number = next(used)
                if number > replacements:
                    return None
                task = self._task(self.nodes[node], number, uuid.uuid4().hex)
                return stack.enter_context(self._launcher(task, self.nodes[node]))

            ending = supervise(
                launchers,
                lambda: self._failure(restart) is not None,
                stop_timeout_s=self.stop_timeout_s,
                replace=replace if self.survives else None,
            )
        if ending.signal_number is not None:
            raise LaunchStopped(ending.signal_number)
        if any(ending.exit_codes[:1] if self.survives else ending.exit_codes) or self._failure(restart):
            raise self._error(ending, restart)

    def _failure(self, restart: int) -> RankFailure | None:
        """The first failure that the run cannot go on after."""
        if not self.survives:
            return first_failure(self.logs, restart)
        ranks = self.emulation.ranks_per_node
        fatal = (each for each in read_failures(self.logs) if each.rank < ranks or is_mistake(each))
        return next(fatal, None)

    def _task(self, node: EmulatedNode, restart: int, run_id: str) -> NodeTask:
        return NodeTask(
            entry=self.entry,
            argument=self.argument,
            logs=str(self.logs),
            nodes=self.emulation.nodes,
            node=node.index,
            ranks=self.emulation.ranks_per_node,
            address=node.address,
            rendezvous=f"{self.nodes[0].address}:{RENDEZVOUS_PORT + (0 if self.survives else restart)}",
            run_id=run_id,
            restart=restart,
            stop_timeout_s=self.stop_timeout_s,
            parent=os.getpid(),
            alone=self.survives,
            python_path=sys.path,
        )

    @contextmanager
    def _launcher(self, task: NodeTask, node: EmulatedNode) -> Iterator[subprocess.Popen[bytes]]:
        """The launcher of a node, killed if it still runs when the context ends."""
        command = [*enter_command(node.holder), sys.executable, "-P", "-m", "syncline.launch.node"]
        with node_log_path(self.logs, node.index).open("ab") as log, holding_stop_signals():
            output = None if node.index == 0 else log
            launcher = subprocess.Popen(
                command,
                env=self._variables(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                process_group=0,
            )
        with launcher:
            try:
                _tell(launcher, task)
                yield launcher
            finally:
                launcher.kill()

    def _variables(self) -> dict[str, str]:
        defaults = rank_variables(self.emulation.world_size, INTERFACE)
        # Torch warns of every address without a name, and none of the emulated nodes has one.
        defaults["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        # The user's choice of an interface is about this machine's own ones.
        return {**defaults, **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE}

    def _error(self, ending: Ending, restart: int) -> SynclineError:
        failure = self._failure(restart)
        dead = ending.dead_node
        if failure is not None and (dead is None or failure.time_s <= ending.death_time_s):
            return failure_error(failure, self.logs)
        codes = ending.exit_codes
        node = next(index for index, code in enumerate(codes) if code) if dead is None else dead
        log = node_log_path(self.logs, node)
        return RankFailedError(
            f"The launcher of node {node} {death_text(codes[node])}.\n{tail_text(log)}Its log: {log}",
            rank=node * self.emulation.ranks_per_node,
            exit_code=codes[node],
        )


def _tell(launcher: subprocess.Popen[bytes], task: NodeTask) -> None:
    assert launcher.stdin is not None
    # A launcher that did not even start says so by its exit code.
    with contextlib.suppress(BrokenPipeError), launcher.stdin as stream:
        stream.write(encode_task(task))
