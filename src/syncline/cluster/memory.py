"""How much memory training takes on this rank's device, measured."""

from __future__ import annotations

from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_MEMINFO = Path("/proc/meminfo")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class MemoryMeter:
    """Peak memory over what the process held when the meter was made.

    On an accelerator: bytes allocated by torch. On a CPU: resident memory of the process, so make the
    meter before the model, when libraries and data are loaded already. What torch loads and starts only on
    first use (kernels, threads, a part of itself with the first optimizer) is used before that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._highest = 0
        self._paused = False
        self._stopped = False
        if device.type == "cpu":
            _warm_up()
        self._before = _read_kib(_STATUS, "VmRSS") if device.type == "cpu" else 0

    def reset_peak(self) -> None:
        """Forget the peak so far, for example that of building the model."""
        self._highest, self._paused = 0, False
        self._reset()

    def pause(self) -> None:
        """What happens from here on is no training step, and does not count."""
        self._highest, self._paused = self.peak_bytes() or 0, True

    def resume(self) -> None:
        """Count again."""
        if self._paused and not self._stopped:
            self._paused = False
            self._reset()

    def stop(self) -> None:
        """Count no more: what the process holds from here on is not all for training."""
        self.pause()
        self._stopped = True

    def peak_bytes(self) -> int | None:
        """The peak since the last reset; None where the system does not tell."""
        if self._paused:
            return self._highest
        if self._device.type != "cpu":
            return max(self._highest, torch.accelerator.max_memory_allocated(self._device))
        peak = _read_kib(_STATUS, "VmHWM")
        return None if peak is None or self._before is None else max(self._highest, peak - self._before)

    def _reset(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(self._device)
        elif _CLEAR_REFS.exists():
            _CLEAR_REFS.write_text("5")


def _warm_up() -> None:
    """One small step of the kinds of ops that have libraries of their own."""
    picture = torch.zeros(1, 8, 8, 8)
    weight = torch.zeros(8, 8, 3, 3, requires_grad=True)
    flat = torch.nn.functional.conv2d(picture, weight).flatten(1)
    product = torch.zeros(4, flat.shape[1], requires_grad=True)
    torch.nn.functional.linear(flat, product).sum().backward()
    torch.optim.AdamW([weight, product]).step()


def machine_memory_bytes(field: str = "MemTotal") -> int | None:
    """Main memory of this machine, or with `MemAvailable` what is free of it; None if it does not tell."""
    return _read_kib(_MEMINFO, field)


def _read_kib(path: Path, field: str) -> int | None:
    if not path.exists():
        return None
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
