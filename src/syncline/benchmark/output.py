"""Writing files that the user has named."""

from __future__ import annotations

from pathlib import Path

from syncline.errors import RunFolderError
from syncline.training.files import write_text


def write_output(path: Path, text: str) -> None:
    """Write a file; the folder that it belongs into is made.

    Raises:
        RunFolderError: It cannot be written there.
    """
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder, not a file to write.\nName a file, such as one in it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error}\nName another file.") from None
