"""CIFAR-10: 60,000 colour pictures of 32 x 32 pixels, in the two forms that it is published in."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from syncline.errors import DataError
from syncline.workloads.data.images import image_data
from syncline.workloads.workload import Data, InputSpec

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_TRAIN = [f"data_batch_{number}" for number in range(1, 6)]
_EVALUATION = ["test_batch"]
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")


def load_cifar10(folder: Path, input: InputSpec) -> Data:
    """The batches of a folder, or of the folder that the archive unpacks to inside it."""
    name = f"cifar10:{folder}"
    for inside in (folder / sub for sub in _FOLDERS):
        for suffix in (".bin", ""):
            if (inside / f"{_TRAIN[0]}{suffix}").is_file():
                train, evaluation = (
                    _read_batches(name, [inside / f"{batch}{suffix}" for batch in batches])
                    for batches in (_TRAIN, _EVALUATION)
                )
                return image_data(name, input, train=train, evaluation=evaluation)
    raise DataError(
        f"Data '{name}': there is no {_TRAIN[0]} and no {_TRAIN[0]}.bin in {folder.absolute()}.\n"
        "Give the folder that cifar-10-python.tar.gz or cifar-10-binary.tar.gz unpacks to."
    )


def _read_batches(name: str, paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    parts = []
    for path in paths:
        if not path.is_file():
            raise DataError(f"Data '{name}': the file {path} is missing.")
        parts.append((_read_binary if path.suffix == ".bin" else _read_pickle)(name, path))
    pixels, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return pixels.reshape(-1, *_SHAPE), labels


def _read_binary(name: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Records of one byte of label and the pixels."""
    raw = np.fromfile(path, dtype=np.uint8)
    if len(raw) == 0 or len(raw) % (1 + _PIXELS):
        raise DataError(
            f"Data '{name}': {path} has {len(raw):,} bytes, which is not a number of whole records of "
            f"{1 + _PIXELS:,} bytes: the file is cut off or broken."
        )
    records = raw.reshape(-1, 1 + _PIXELS)
    return records[:, 1:], records[:, 0]


def _read_pickle(name: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except Exception as error:
        # A broken pickle can raise nearly anything.
        raise DataError(
            f"Data '{name}': {path} is not a batch of CIFAR-10 ({type(error).__name__}: {error})."
        ) from error
    if (
        pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != _PIXELS
        or len(labels) != len(pixels)
    ):
        raise DataError(
            f"Data '{name}': {path} has pixels of shape {pixels.shape} and {labels.size} labels; a batch of "
            f"CIFAR-10 has (samples, {_PIXELS}) and as many labels."
        )
    return pixels, labels


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, numbers and containers; refuses every other class, since a pickle can run code."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("multiarray", "_reconstruct"): _empty_array,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin_bytes,
        }
        short = "multiarray" if module in ("numpy.core.multiarray", "numpy._core.multiarray") else module
        if (short, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data needs")
        return allowed[short, name]


def _empty_array(_kind: type[np.ndarray], shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return np.ndarray(shape, dtype)


def _latin_bytes(text: str, _encoding: str) -> bytes:
    return text.encode("latin1")
