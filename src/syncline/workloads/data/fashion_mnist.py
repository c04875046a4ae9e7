"""Fashion-MNIST: 70,000 grey pictures of clothes, read from the IDX files that it is published as."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from syncline.errors import DataError
from syncline.workloads.data.images import image_data
from syncline.workloads.workload import Data, InputSpec

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_UNSIGNED_BYTES = 8


def load_fashion_mnist(folder: Path | None, input: InputSpec) -> Data:
    """The four IDX files of a folder, packed by gzip or not."""
    name = "fashion-mnist" if folder is None else f"fashion-mnist:{folder}"
    where = folder or DEBIAN_FOLDER
    train, evaluation = (_read_part(name, where, part) for part in ("train", "t10k"))
    return image_data(name, input, train=train, evaluation=evaluation)


def _read_part(name: str, folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = _read_idx(name, _find(name, folder, f"{part}-images-idx3-ubyte"), dims=3)
    labels = _read_idx(name, _find(name, folder, f"{part}-labels-idx1-ubyte"), dims=1)
    if len(images) != len(labels) or len(images) == 0:
        raise DataError(f"Data '{name}': {folder} has {len(images)} {part} images and {len(labels)} labels.")
    return images[:, None], labels


def _find(name: str, folder: Path, file: str) -> Path:
    for path in (folder / f"{file}.gz", folder / file):
        if path.is_file():
            return path
    raise DataError(
        f"Data '{name}': there is no {file}.gz and no {file} in {folder}.\n"
        "On Debian and Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere give the folder that has "
        "the files: fashion-mnist:PATH."
    )


def _read_idx(name: str, path: Path, dims: int) -> np.ndarray:
    """An array of unsigned bytes: 0, 0, type, number of dims, each dim as 4 bytes, then the values."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"Data '{name}': {path} cannot be read: {error}.") from error
    header = 4 + 4 * dims
    if raw[:4] != bytes([0, 0, _UNSIGNED_BYTES, dims]) or len(raw) < header:
        raise DataError(f"Data '{name}': {path} is not an IDX file of bytes with {dims} dims.")
    shape = tuple(int(size) for size in np.frombuffer(raw, dtype=">u4", count=dims, offset=4))
    if len(raw) - header != math.prod(shape):
        raise DataError(
            f"Data '{name}': {path} promises {math.prod(shape):,} values and has {len(raw) - header:,}: "
            "the file is cut off or broken."
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
