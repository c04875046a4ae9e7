"""Digits, Fashion-MNIST and CIFAR-10, read from files in each of their forms."""

from __future__ import annotations

import gzip
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from samples import fetch, size
from syncline.errors import DataError, MissingExtraError
from syncline.workloads.data import fashion_mnist
from syncline.workloads.data.registry import load_data
from syncline.workloads.workload import InputSpec

# Imported here, since it sets environment variables, which no test may.
try:
    import sklearn.datasets as sklearn
except ImportError:
    sklearn = None

IMAGE = InputSpec(kind="image", shape=(3, 8, 8), classes=10)
FEATURES = InputSpec(kind="features", shape=(64,), classes=10)


def write_idx(path: Path, array: np.ndarray) -> None:
    raw = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def write_fashion(folder: Path, suffix: str = ".gz", labels: int = 10) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("t10k", 10)):
        images = random.integers(256, size=(count, 28, 28), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", (np.arange(count) % labels).astype(np.uint8))
    return folder


def cifar_batches() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    return {name: (random.integers(256, size=(4, 3072), dtype=np.uint8), np.arange(4)) for name in names}


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """What CIFAR-10 is published as: Python 2 strings and the module names of an old NumPy."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    shape = b"(" + integer(len(pixels)) + integer(pixels.shape[1]) + b"t"
    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + integer(0) + integer(1) + b"tR"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n("
        + integer(0)
        + b"t"
        + string(b"b")
        + b"tR"
    )
    array += b"(" + integer(1) + shape + dtype + b"\x89" + string(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(integer(int(label)) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + numbers + b"u."


def write_cifar(folder: Path, form: str) -> Path:
    for name, (pixels, labels) in cifar_batches().items():
        if form == "binary":
            records = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(records.tobytes())
        elif form == "python2":
            (folder / name).write_bytes(python2_pickle(pixels, labels))
        else:
            content = {b"data": pixels, b"labels": labels.tolist()}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return folder


def test_digits_and_their_forms() -> None:
    if sklearn is None:
        pytest.skip("the extra 'digits' is not installed")
    data = load_data("digits", FEATURES, seed=0)
    assert len(data.train) + size(data.evaluation) == 1797
    inputs, labels = fetch(data.train, np.arange(1000))
    assert inputs.shape == (1000, 64)
    assert abs(inputs.mean().item()) < 0.1
    assert abs(inputs.std().item() - 1) < 0.1
    assert set(labels.tolist()) == set(range(10))
    large = load_data("digits", InputSpec(kind="image", shape=(3, 20, 24), classes=10), seed=0)
    images, same = fetch(large.train, range(5))
    assert images.shape == (5, 3, 20, 24)
    assert torch.equal(images[:, 0], images[:, 2])
    assert torch.equal(same, labels[:5])


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"syncline\[digits\]"):
        load_data("digits", FEATURES, seed=0)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_fashion_mnist_packed_or_not(tmp_path: Path, suffix: str) -> None:
    write_fashion(tmp_path, suffix)
    data = load_data(
        f"fashion-mnist:{tmp_path}", InputSpec(kind="image", shape=(1, 28, 28), classes=10), seed=0
    )
    inputs, labels = fetch(data.train, np.array([3, 1]))
    assert inputs.shape == (2, 1, 28, 28)
    assert labels.tolist() == [3, 1]
    assert (len(data.train), size(data.evaluation)) == (20, 10)


def test_fashion_mnist_of_debian() -> None:
    if not fashion_mnist.DEBIAN_FOLDER.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    data = load_data("fashion-mnist", InputSpec(kind="features", shape=(784,), classes=10), seed=0)
    assert (len(data.train), size(data.evaluation)) == (60_000, 10_000)


def test_fashion_mnist_missing_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path)
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load_data("fashion-mnist", IMAGE, seed=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "cannot be read"),
        (gzip.compress(b"\0" * 100, mtime=0), "not an IDX file"),
        (
            gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 9, 28, 28) + b"\0" * 5, mtime=0),
            "promises 7,056 values",
        ),
        (gzip.compress(bytes(3000), mtime=0)[:-20], "cannot be read"),
    ],
)
def test_fashion_mnist_broken(tmp_path: Path, content: bytes, message: str) -> None:
    write_fashion(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_data(f"fashion-mnist:{tmp_path}", IMAGE, seed=0)


def test_fashion_mnist_with_labels_missing(tmp_path: Path) -> None:
    write_fashion(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.zeros(3, dtype=np.uint8))
    with pytest.raises(DataError, match="20 train images and 3 labels"):
        load_data(f"fashion-mnist:{tmp_path}", IMAGE, seed=0)


@pytest.mark.parametrize("form", ["binary", "python2", "python3"])
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_cifar10_in_each_form(tmp_path: Path, form: str, inside: str) -> None:
    (tmp_path / inside).mkdir(exist_ok=True)
    write_cifar(tmp_path / inside, form)
    data = load_data(f"cifar10:{tmp_path}", InputSpec(kind="image", shape=(3, 32, 32), classes=10), seed=0)
    inputs, labels = fetch(data.train, np.arange(20))
    expected = np.concatenate([pixels for pixels, _ in list(cifar_batches().values())[:5]])
    flat = torch.from_numpy(expected.reshape(20, 3, -1)).float()
    std, mean = torch.std_mean(flat.transpose(0, 1).flatten(1), dim=1, correction=0)
    torch.testing.assert_close(inputs.flatten(2), (flat - mean[:, None]) / std[:, None])
    assert labels.tolist() == [0, 1, 2, 3] * 5


class Evil:
    def __reduce__(self):
        return print, ("a pickle ran code",)


def test_cifar10_does_not_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cifar(tmp_path, "python3")
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(DataError, match="which no data needs"):
        load_data(f"cifar10:{tmp_path}", IMAGE, seed=0)
    assert capsys.readouterr().out == ""


def test_cifar10_mistakes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data_batch_1 and no data_batch_1\.bin"):
        load_data(f"cifar10:{tmp_path}", IMAGE, seed=0)
    write_cifar(tmp_path, "binary")
    (tmp_path / "data_batch_2.bin").write_bytes(b"\0" * 5000)
    with pytest.raises(DataError, match="5,000 bytes"):
        load_data(f"cifar10:{tmp_path}", IMAGE, seed=0)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2\.bin is missing"):
        load_data(f"cifar10:{tmp_path}", IMAGE, seed=0)
    pickles = tmp_path / "pickles"
    pickles.mkdir()
    write_cifar(pickles, "python3")
    (pickles / "data_batch_1").write_bytes(
        pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]})
    )
    with pytest.raises(DataError, match=r"shape \(2, 5\)"):
        load_data(f"cifar10:{pickles}", IMAGE, seed=0)


def test_channels_that_cannot_be_converted(tmp_path: Path) -> None:
    write_cifar(tmp_path, "binary")
    with pytest.raises(DataError, match="3 channels, the model takes 4"):
        load_data(f"cifar10:{tmp_path}", InputSpec(kind="image", shape=(4, 8, 8), classes=10), seed=0)
    grey = load_data(f"cifar10:{tmp_path}", InputSpec(kind="image", shape=(1, 8, 8), classes=10), seed=0)
    assert fetch(grey.train, np.arange(2))[0].shape == (2, 1, 8, 8)
