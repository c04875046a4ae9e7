"""Network namespaces without a name: each lives as long as the process that holds it.

The holder ends with its maker, by the kernel's parent-death signal and since it reads from a pipe
that its maker keeps open. So nothing remains even of a maker that was killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from syncline.errors import ClusterError

DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def check_emulation_possible() -> None:
    """Raise a `ClusterError` that says what is missing when this machine cannot emulate nodes."""
    if sys.platform != "linux":
        raise ClusterError(
            f"Nodes are emulated with network namespaces, which Linux has and {sys.platform} has not."
        )
    for tool, package in _PACKAGES.items():
        if _find(tool) is None:
            raise ClusterError(
                f"Nodes are emulated with the program '{tool}', which is not installed.\n"
                f"Debian and Ubuntu have it in the package {package}: apt install {package}"
            )
    if os.geteuid() != 0:
        raise ClusterError("Nodes are emulated with network namespaces, which needs root: run this as root.")
    tried = subprocess.run(
        [*_command("unshare"), "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        raise ClusterError(
            f"This machine lets root make no network namespaces: {tried.stderr.strip()}\n"
            "A container needs the capabilities SYS_ADMIN and NET_ADMIN (docker run --privileged)."
        )


@contextmanager
def network_namespace() -> Iterator[int]:
    """A new network namespace, given as the process that holds it, until the context ends."""
    command = [*_command(*DIES_WITH_PARENT), *_command("unshare"), "--net", "sh", "-c", "echo made; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            if holder.stdout is None or holder.stdout.readline() != b"made\n":
                raise ClusterError("A network namespace could not be made.")
            yield holder.pid
        finally:
            holder.kill()


def enter_command(holder: int) -> list[str]:
    """What to put before a command so that it runs in a namespace and ends with its starter."""
    return [*_command(*DIES_WITH_PARENT), *_command("nsenter"), f"--net=/proc/{holder}/ns/net"]


def run_batch(holder: int, tool: str, lines: Sequence[str]) -> None:
    """Run lines of `ip` or `tc` in a namespace.

    Raises:
        ClusterError: One of them failed.
    """
    done = subprocess.run(
        [*enter_command(holder), *_command(tool), "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"The emulated network could not be made: {tool} says\n{done.stderr.strip()}")


def _find(tool: str) -> str | None:
    return shutil.which(tool) or shutil.which(tool, path=_SYSTEM_FOLDERS)


def _command(tool: str, *arguments: str) -> list[str]:
    return [_find(tool) or tool, *arguments]
