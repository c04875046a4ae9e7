"""Peak memory: of what is counted, and of nothing else."""

import mmap
import sys

import pytest
import torch

from syncline.cluster.memory import MemoryMeter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
MANY = 64 << 20
ABOUT = 0.95
"""The kernel counts pages in batches."""


def peak_of(meter: MemoryMeter) -> int:
    peak = meter.peak_bytes()
    assert peak is not None
    return peak


def take(nbytes: int) -> None:
    """Touch so much memory and give it back, past the C library: what it has kept is resident already."""
    with mmap.mmap(-1, nbytes) as pages:
        pages[:: mmap.PAGESIZE] = b"\1" * (nbytes // mmap.PAGESIZE)


def test_a_peak_is_seen_after_it_has_passed_and_forgotten_on_reset():
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    take(MANY)
    assert ABOUT * MANY <= peak_of(meter) < 2 * MANY
    meter.reset_peak()
    assert peak_of(meter) < MANY // 2


def test_what_happens_while_paused_does_not_count():
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    take(MANY)
    meter.pause()
    before = peak_of(meter)
    take(4 * MANY)
    assert peak_of(meter) == before
    meter.resume()
    assert peak_of(meter) == before
    take(2 * MANY)
    assert ABOUT * 2 * MANY <= peak_of(meter) < 3 * MANY


def test_a_stopped_meter_stays_so():
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    take(MANY)
    meter.stop()
    before = peak_of(meter)
    assert before >= ABOUT * MANY
    meter.resume()
    take(4 * MANY)
    assert peak_of(meter) == before


def test_torch_is_warm_before_the_baseline_is_read():
    meter = MemoryMeter(torch.device("cpu"))
    meter.reset_peak()
    weight = torch.zeros(8, 8, requires_grad=True)
    (weight @ torch.ones(8)).sum().backward()
    torch.optim.SGD([weight]).step()
    assert peak_of(meter) < 4 << 20
