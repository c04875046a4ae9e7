"""What is under way while a rank goes on: how that is started, and how waiting for it shows in a profile."""

from __future__ import annotations

import torch.distributed as dist
from torch.profiler import record_function

from syncline._torch_compat import unrecorded as unrecorded

WAIT_MARK = "syncline:wait for another rank"
"""What a profile calls the time that a rank waits for something which `unrecorded` hid from it."""


def wait_for(work: dist.Work | None) -> None:
    """Wait for something that was started earlier."""
    if work is not None:
        with record_function(WAIT_MARK):
            work.wait()
