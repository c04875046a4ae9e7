"""Text as bytes: Python's own standard library, or any file or folder."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from syncline.errors import DataError
from syncline.workloads.data.windows import split_text
from syncline.workloads.workload import Data, InputSpec

STDLIB_BYTES = 8_000_000
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_BINARY_CHECK_BYTES = 8192


def load_stdlib_text(input: InputSpec) -> Data:
    """The sources of Python's standard library, with the documentation that is in them.

    The text is the same for one version of Python: modules in order of their names, tests and what
    depends on the build left out. When all of it is too much, each file gives the same share, its start.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_bytes() for path in _library_files(folder)]
    total = sum(len(text) for text in texts)
    if total == 0:
        raise DataError(
            f"Data 'stdlib-text' reads the sources of Python's standard library, but {folder} has none.\n"
            "Give text of your own with text:PATH, or use synthetic."
        )
    share = min(1.0, STDLIB_BYTES / total)
    shown = b"\n".join(text[: int(len(text) * share)] for text in texts)
    return split_text("stdlib-text", np.frombuffer(shown, dtype=np.uint8), input)


def load_text(path: Path, input: InputSpec) -> Data:
    """The bytes of a file, or of every readable text file in a folder in order of their paths."""
    name = f"text:{path}"
    if path.is_dir():
        return split_text(name, _read_folder(name, path), input)
    try:
        # Mapped, not read: ranks on one machine share the pages, and a huge file costs nothing to open.
        tokens = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise DataError(f"Data '{name}' cannot be read: {error.strerror or error}.") from error
    return split_text(name, tokens, input)


def _library_files(folder: Path) -> list[Path]:
    files = [path for path in _walk(folder, _NOT_LIBRARY) if path.suffix == ".py"]
    return [path for path in files if not path.name.startswith("_sysconfigdata")]


def _read_folder(name: str, folder: Path) -> np.ndarray:
    texts = [text for path in _walk(folder, {"__pycache__"}) if (text := _read_text(path))]
    if not texts:
        raise DataError(f"Data '{name}': the folder {folder.absolute()} has no readable text file.")
    return np.frombuffer(b"\n".join(texts), dtype=np.uint8)


def _read_text(path: Path) -> bytes | None:
    try:
        text = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in text[:_BINARY_CHECK_BYTES] else text


def _walk(folder: Path, skipped: set[str]) -> Iterator[Path]:
    """Regular files below a folder, hidden ones left out, in an order that no file system changes."""
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        found += [Path(root, name) for name in files if not name.startswith(".")]
    found.sort(key=lambda path: path.relative_to(folder).as_posix())
    return (path for path in found if path.is_file())
