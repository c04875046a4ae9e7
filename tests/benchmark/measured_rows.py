"""What the tests of benchmarks share: rows as a benchmark would have measured them."""

import dataclasses
from typing import Any

from syncline.benchmark.environment import Environment
from syncline.benchmark.row import Row

BREAKDOWN = {"compute_s": 0.06, "exposed_comm_s": 0.02, "bubble_s": 0.0, "overhead_s": 0.019, "data_s": 0.001}


FIGURES = (
    "final_loss",
    "eval_loss",
    "median_step_s",
    "step_s_p10",
    "step_s_p90",
    "samples_per_s",
    "peak_memory_bytes",
    "sent_bytes",
    "exposed_comm_s",
    "predicted_step_s",
    "predicted_peak_memory_bytes",
    "sustained_step_s",
    "step_s_low",
    "step_s_high",
    "sustained_samples_per_s",
    "flops_per_step",
    "flop_utilisation",
    "breakdown",
    "memory_by_kind",
)


def make_row(label="data", *, step_s=0.1, seed=0, exact=True, loss=3.0, **changes):
    """A measured row; `changes` replace what it says."""
    strategy = label.partition(":")[0]
    groups = [step_s * factor for factor in (0.99, 1.0, 1.01, 1.0)]
    values: dict[str, Any] = {
        "strategy": strategy,
        "options": {},
        "exact": exact,
        "model": "gpt2-tiny",
        "data": "stdlib-text",
        "world_size": 1 if strategy == "single" else 2,
        "cluster": "local",
        "steps": 40,
        "samples": 640,
        "final_loss": loss,
        "eval_loss": loss,
        "median_step_s": step_s,
        "step_s_p10": step_s,
        "step_s_p90": step_s,
        "samples_per_s": 16 / step_s,
        "peak_memory_bytes": [60_000_000, 61_000_000],
        "sent_bytes": {"node": 40_000_000, "network": 0},
        "exposed_comm_s": 0.02,
        "predicted_step_s": 0.08,
        "predicted_peak_memory_bytes": 50_000_000,
        "wall_s": 9.0,
        "time_to_target_s": None,
        "samples_to_target": None,
        "status": "ok",
        "reason": None,
        "cell": f"gpt2-tiny_{label}_seed{seed}",
        "label": label,
        "seed": seed,
        "batch": 16,
        "scaling": "strong",
        "devices": 2,
        "group_step_s": groups,
        "sustained_step_s": step_s,
        "step_s_low": 0.99 * step_s,
        "step_s_high": 1.01 * step_s,
        "sustained_samples_per_s": 16 / step_s,
        "flops_per_step": 1e9,
        "flop_utilisation": 0.2,
        "breakdown": dict(BREAKDOWN),
        "memory_by_kind": {
            "weights": 900_000,
            "gradients": 900_000,
            "optimizer_state": 1_800_000,
            "activations": 9_000_000,
            "other": 48_000_000,
        },
        "curve": [[16.0 * (step + 1), step_s * (step + 1), 5.0 - 0.05 * step] for step in range(40)],
        "timeline": [
            {
                "rank": rank,
                "spans": [
                    {"kind": "compute_s", "start_s": 0.0, "end_s": 0.06},
                    {"kind": "exposed_comm_s", "start_s": 0.06, "end_s": 0.08},
                ],
            }
            for rank in range(2)
        ],
    }
    return Row(**(values | changes))


def failed_row(label, reason="Rank 1 ended with exit code 1.", **changes):
    """The row of a cell that gave no figures."""
    missing = dict.fromkeys(FIGURES)
    empty = {"group_step_s": [], "curve": [], "timeline": [], "steps": 0, "samples": 0}
    return make_row(label, **(missing | empty | {"status": "failed", "reason": reason} | changes))


def make_environment(**changes):
    """A small machine; `changes` replace what it says."""
    return dataclasses.replace(_ENVIRONMENT, **changes)


_ENVIRONMENT = Environment(
    date="2026-01-01T00:00:00+00:00",
    commit="0123456789ab",
    syncline="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    numpy="2.0.0",
    system="Linux",
    device="a CPU",
    device_kind="cpu",
    device_count=2,
    cores=2,
    memory_bytes=8_000_000_000,
    load=0.1,
    matmul_flops_per_s=1e11,
)
