"""What ranks run in the tests of the launchers. Each function gets one string."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from syncline.errors import DataError


def _rank() -> int:
    return int(os.environ["RANK"])


def note(folder: str) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
    Path(folder, f"seen-{_rank()}").write_text(" ".join(os.environ[name] for name in names))


def note_and_sum(folder: str) -> None:
    note(folder)
    sum_ranks(folder)


def write(text: str) -> None:
    print(f"out of rank {_rank()}: {text}", flush=True)
    print(f"err of rank {_rank()}", file=sys.stderr)
    os.system("echo child of rank $RANK")


def sum_ranks(folder: str) -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([float(_rank())])
    dist.all_reduce(total)
    Path(folder, f"sum-{_rank()}").write_text(str(total.item()))
    dist.destroy_process_group()


def fail(kind: str) -> None:
    """Rank 1 fails while rank 0 hangs in a collective, deaf to SIGTERM when the kind says so."""
    kind, _, deaf = kind.partition("+")
    dist.init_process_group("gloo")
    dist.barrier()
    if _rank() == 1:
        time.sleep(0.3)
        fail_now(kind)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    if kind == "raise-aside":
        time.sleep(1000)
    dist.barrier()


def fail_now(kind: str) -> None:
    print("last words")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(7)
    elif kind == "sysexit":
        sys.exit(5)
    elif kind == "known":
        raise DataError("no such corpus")
    elif kind == "interrupt":
        raise KeyboardInterrupt
    raise ValueError("too many cooks")


def fail_first_rank(_: str) -> None:
    if _rank() == 0:
        raise ValueError("head cook is ill")
    time.sleep(1000)


def fail_once(folder: str) -> None:
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("attempt", restart)
    dist.init_process_group("gloo")
    dist.barrier()
    Path(folder, f"attempt-{restart}-{_rank()}").touch()
    if restart == "0" and _rank() == 1:
        raise ValueError("only the first time")
    dist.barrier()
    dist.destroy_process_group()


def fail_always(_: str) -> None:
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if _rank() == int(restart):
        raise ValueError(f"attempt {restart}")
    time.sleep(1000)


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
