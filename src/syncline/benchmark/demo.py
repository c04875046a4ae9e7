"""The suite that needs no file: every strategy on a small language model, on two ranks of this machine."""

from __future__ import annotations

from syncline.benchmark.suite import Budget, Suite


def demo_suite() -> Suite:
    """All strategies; each rank is a node of its own to those that are made for slow links."""
    return Suite(
        name="demo",
        models=("gpt2-tiny",),
        strategies=(
            "single",
            "data",
            "zero1",
            "sharded",
            "tensor",
            "planned",
            "pipeline",
            "local",
            "daso:node-size=1",
            "local-sgd:node-size=1,sync-every=4",
            "diloco:node-size=1,sync-every=4",
            "hierarchical:node-size=1,sync-every=4",
            "data:compress=powersgd",
        ),
        budget=Budget(steps=48),
        batch=16,
        target_loss=3.5,
    )
