"""The data sets by name, and what each of them can feed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from syncline.errors import DataError, unknown_name
from syncline.workloads.data.cifar10 import load_cifar10
from syncline.workloads.data.digits import load_digits
from syncline.workloads.data.fashion_mnist import load_fashion_mnist
from syncline.workloads.data.synthetic import load_synthetic
from syncline.workloads.data.text import load_stdlib_text, load_text
from syncline.workloads.workload import Data, InputSpec

BYTES = 256
_GIVES = {"features": "features", "image": "images", "tokens": "tokens", "token-pairs": "pairs of sequences"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """One data set that can be asked for by name."""

    gives: Literal["text", "images", "anything"]
    summary: str
    load: Callable[[Path, InputSpec, int], Data]
    path: Literal["none", "optional", "required"] = "none"
    """Whether a PATH follows the name after a colon. Without one, `load` gets an empty path."""

    def fits(self, input: InputSpec) -> bool:
        """Whether it can feed a model with such an input, as far as the kind says."""
        return self.gives == "anything" or (self.gives == "text") == (input.kind in ("tokens", "token-pairs"))


SOURCES: dict[str, DataSource] = {
    "stdlib-text": DataSource(
        gives="text",
        summary="bytes of the sources and documentation of Python's standard library",
        load=lambda path, input, seed: load_stdlib_text(input),
    ),
    "text": DataSource(
        gives="text",
        summary="bytes of a file, or of all text files in a folder",
        load=lambda path, input, seed: load_text(path, input),
        path="required",
    ),
    "digits": DataSource(
        gives="images",
        summary="1,797 handwritten digits of 8 x 8 pixels, from scikit-learn",
        load=lambda path, input, seed: load_digits(input),
    ),
    "fashion-mnist": DataSource(
        gives="images",
        summary="70,000 grey pictures of clothes of 28 x 28 pixels",
        load=lambda path, input, seed: load_fashion_mnist(path if path.parts else None, input),
        path="optional",
    ),
    "cifar10": DataSource(
        gives="images",
        summary="60,000 colour pictures of 32 x 32 pixels",
        load=lambda path, input, seed: load_cifar10(path, input),
        path="required",
    ),
    "synthetic": DataSource(
        gives="anything",
        summary="samples of any shape, labelled by a fixed random teacher",
        load=lambda path, input, seed: load_synthetic(input, seed),
    ),
}


def load_data(spec: str, input: InputSpec, *, seed: int) -> Data:
    """The data set that `spec` names, in the form that a model takes.

    Args:
        spec: A name from `data_names`, with a PATH after a colon where it takes one.
        input: What the model takes.
        seed: Chooses the task of `synthetic`; the others are what they are.
    """
    source, path = check_data(spec, input)
    return source.load(path, input, seed)


def check_data(spec: str, input: InputSpec) -> tuple[DataSource, Path]:
    """Find the source and the path of a data set and refuse what cannot fit, without reading any of it."""
    name, colon, argument = spec.partition(":")
    source = SOURCES.get(name)
    if source is None:
        raise DataError(unknown_name("data set", name, data_names()))
    if source.path == "none" and colon:
        raise DataError(f"Data '{spec}': {name} takes no path. Write just {name}.")
    if source.path == "required" and not argument:
        raise DataError(f"Data '{spec}': {name} needs to know where it is. Write {name}:PATH.")
    if not source.fits(input):
        fitting = ", ".join(data_names(input))
        raise DataError(
            f"Data '{spec}' gives {source.gives}, but the model takes {_GIVES[input.kind]} of shape "
            f"{list(input.shape)}.\nData that fits: {fitting}."
        )
    if source.gives == "text" and input.classes < BYTES:
        raise DataError(
            f"Data '{spec}' is text as bytes, of which there are {BYTES}, but the vocabulary of the model "
            f"has {input.classes}.\nUse a vocabulary of {BYTES} or more, or the data set synthetic."
        )
    path = Path(argument).expanduser()
    if not path.exists():
        raise DataError(f"Data '{spec}': there is no file or folder {path.absolute()}.")
    return source, path


def data_names(input: InputSpec | None = None) -> list[str]:
    """The data sets that exist, or those that can feed a model, as they are written: `text:PATH`."""
    suffixes = {"none": "", "optional": "[:PATH]", "required": ":PATH"}
    return [
        name + suffixes[source.path]
        for name, source in SOURCES.items()
        if input is None or source.fits(input)
    ]
