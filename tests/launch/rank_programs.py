"""What ranks run in the tests of the launchers. Each function gets one string."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from syncline.cluster.traffic import TrafficMeter
from syncline.errors import DataError
from syncline.launch.link import read_link_bytes


def _rank() -> int:
    return int(os.environ["RANK"])


def talk(argument: str) -> None:
    folder, _, text = argument.partition(" ")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    Path(folder, f"seen-{_rank()}").write_text(" ".join(os.environ[name] for name in names))
    print(f"out of rank {_rank()}: {text}", flush=True)
    print(f"err of rank {_rank()}", file=sys.stderr)
    os.system("echo child of rank $RANK")
    dist.init_process_group("gloo")
    total = torch.tensor([float(_rank())])
    dist.all_reduce(total)
    Path(folder, f"sum-{_rank()}").write_text(str(total.item()))
    dist.destroy_process_group()


def reduce(folder: str) -> None:
    """All-reduce 20 MB, and tell what was sent."""
    meter = TrafficMeter()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(5_000_000))
    dist.barrier()
    node = read_link_bytes()
    told = {
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "interface": os.environ["GLOO_SOCKET_IFNAME"],
        "addresses": _addresses(),
        "node_between": node.between,
        **(meter.sent() or {}),
    }
    Path(folder, f"told-{_rank()}").write_text(json.dumps(told))
    print(f"rank {_rank()} speaks")
    # A rank that ends takes its connections with it, on the other ranks too.
    dist.barrier()
    dist.destroy_process_group()


def _addresses() -> list[str]:
    shown = subprocess.check_output(["ip", "-j", "address", "show", "eth0"])
    return [each["local"] for each in json.loads(shown)[0]["addr_info"] if each["family"] == "inet"]


def fail(kinds: str) -> None:
    """Rank 1 fails, in one way or another at each start, while rank 0 hangs in a collective.

    With `+deaf`, rank 0 sleeps instead and ignores SIGTERM.
    """
    kind, _, deaf = kinds.split(",")[int(os.environ["TORCHELASTIC_RESTART_COUNT"])].partition("+")
    dist.init_process_group("gloo")
    dist.barrier()
    if _rank() == 1:
        time.sleep(0.3)
        fail_now(kind)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    dist.barrier()


def fail_now(kind: str) -> None:
    if _rank() != 0:
        print("last words", flush=True)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(7)
    elif kind == "known":
        raise DataError("no such corpus")
    raise ValueError("too many cooks")


def fail_first_rank(_: str) -> None:
    if _rank() == 0:
        dist.init_process_group("gloo")
        fail_now("known")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    time.sleep(1000)


def fail_once(folder: str) -> None:
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo")
    dist.barrier()
    Path(folder, f"attempt-{restart}-{_rank()}").touch()
    if restart == "0" and _rank() == 1:
        fail_now("exit")
    dist.barrier()
    dist.destroy_process_group()


def save_when_stopped(folder: str) -> None:
    def stop(number: int, _: object) -> None:
        time.sleep(0.5)
        Path(folder, f"saved-{_rank()}").write_text(signal.Signals(number).name)
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    Path(folder, f"ready-{_rank()}").write_text(str(os.getpid()))
    time.sleep(1000)


def never_stop(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(folder, f"ready-{_rank()}").write_text(str(os.getpid()))
    time.sleep(1000)
