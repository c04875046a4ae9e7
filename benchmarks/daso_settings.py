"""What is trained across which links: models of such a size that data parallelism waits for the link."""

from __future__ import annotations

from dataclasses import dataclass, replace

from syncline.cluster.emulation import parse_emulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model and how it is trained, the same for all strategies."""

    model: str
    batch: int
    steps: int
    clip_norm: float | None = None
    adamw_rate: float | None = None
    """The learning rate of AdamW; the model's usual optimizer and rate without it."""


SMALL_GPT = Task(model="gpt2-tiny:seq=32", batch=16, steps=320, clip_norm=1.0)
LARGER_GPT = Task(model="gpt2-tiny:width=256,seq=32", batch=16, steps=200, clip_norm=1.0, adamw_rate=7e-4)
FEWER_ROWS = replace(LARGER_GPT, batch=12, adamw_rate=5e-4)
"""Few enough that slow cores leave the link its weight, with a rate that data parallelism learns more by."""
FEWEST_ROWS = replace(LARGER_GPT, batch=8, adamw_rate=3.5e-4, steps=300)
"""The same where two ranks share a core."""
SMALL_RESNET = Task(model="resnet18:width=16,image=32", batch=32, steps=300)
LARGER_RESNET = replace(SMALL_RESNET, model="resnet18:width=32,image=32")
"""As many steps too: losses of half of them differ by a percent by chance."""
FULL_RESNET = replace(SMALL_RESNET, model="resnet18:image=32")
"""All of its width, where that does not take an hour."""
SMALL_GPT2 = replace(LARGER_GPT, model="gpt2-small:seq=32", batch=8, adamw_rate=2e-4, steps=100)
"""GPT-2 of the published size, 124 million parameters."""

TASKS: dict[str, tuple[Task, ...]] = {
    "2x1": (SMALL_GPT, SMALL_RESNET, FEWER_ROWS, LARGER_RESNET, FULL_RESNET),
    "2x2": (SMALL_GPT, SMALL_RESNET, FEWEST_ROWS, LARGER_RESNET),
    "2x1@1gbit": (FEWER_ROWS, LARGER_RESNET, FULL_RESNET, SMALL_GPT2),
    "2x2@1gbit": (FEWEST_ROWS, LARGER_RESNET),
    "2x1@100mbit": (SMALL_GPT, SMALL_RESNET),
    "2x2@100mbit": (SMALL_GPT, SMALL_RESNET),
}
"""By cluster. Links of 100 Mbit/s are crossed by small weights, those of 1 Gbit/s by larger ones."""
WEIGHTS = {
    SMALL_GPT.model: "0.9 MB",
    LARGER_GPT.model: "13 MB",
    SMALL_RESNET.model: "3.3 MB",
    LARGER_RESNET.model: "12 MB",
    FULL_RESNET.model: "47 MB",
    SMALL_GPT2.model: "498 MB",
}
"""By model: what an exchange carries in fp32."""


def is_limited(cluster: str) -> bool:
    """Whether its links have a rate."""
    return parse_emulation(cluster).bits_per_s is not None
