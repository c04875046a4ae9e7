"""Putting a run's folder back as it was, when the run could not start."""

from __future__ import annotations

from pathlib import Path

from syncline.training.run_folder import CONFIG_FILE, discard_folder
from syncline.training.sinks import METRICS_FILE
from syncline.training.summary import SUMMARY_FILE

_RESTORED = (CONFIG_FILE, SUMMARY_FILE)


class FolderState:
    """What a run's folder held before a start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {name: _read(folder / name) for name in _RESTORED}
        self._metrics = _read(folder / METRICS_FILE) or b""

    @property
    def has_trained(self) -> bool:
        """Whether a step was made since; a start that resumes may drop steps, but adds none by itself."""
        return not self._metrics.startswith(_read(self._folder / METRICS_FILE) or b"")

    def restore(self) -> None:
        """Undo the start: a folder without an earlier run goes, else its files say what they said before."""
        if self._files[CONFIG_FILE] is None:
            discard_folder(self._folder)
            return
        for name, content in self._files.items():
            if content is None:
                (self._folder / name).unlink(missing_ok=True)
            else:
                (self._folder / name).write_bytes(content)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
