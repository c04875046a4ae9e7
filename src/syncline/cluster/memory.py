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
    meter before the model, when the libraries are loaded already.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = _read_kib(_STATUS, "VmRSS") if device.type == "cpu" else 0

    def reset_peak(self) -> None:
        """Forget the peak so far, for example that of building the model."""
        if self._device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats(self._device)
        elif _CLEAR_REFS.exists():
            _CLEAR_REFS.write_text("5")

    def peak_bytes(self) -> int | None:
        """The peak since the last reset; None where the system does not tell."""
        if self._device.type != "cpu":
            return torch.accelerator.max_memory_allocated(self._device)
        peak = _read_kib(_STATUS, "VmHWM")
        return None if peak is None or self._before is None else max(0, peak - self._before)


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
