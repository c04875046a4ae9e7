"""`syncline export`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from syncline.training.export import export_weights


def export(
    run: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("model.safetensors"),
) -> None:
    """Write the weights of a run's newest checkpoint as one safetensors file.

    They load into the plain model, whatever strategy and number of ranks trained it:

      model.load_state_dict(safetensors.torch.load_file("model.safetensors"))

    Parameters
    ----------
    run:
        The run's folder.
    output:
        The file to write.
    """
    # What the user's own code prints is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        count = export_weights(run, output)
    print(f"{output}: {count} tensors")
