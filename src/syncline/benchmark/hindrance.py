"""What holds a strategy back: one sentence from its figures."""

from __future__ import annotations

from collections.abc import Sequence

from syncline.amounts import show_bytes, show_seconds
from syncline.benchmark.entries import SINGLE, Entry, samples_told
from syncline.benchmark.row import brief

LEAST_SHARE = 0.1
"""Of a step; causes below that hold nobody back."""
_WORSE_LOSS = 0.01
_SLOWER_COMPUTE = 1.15
_CAUSES = ("exposed_comm_s", "bubble_s", "overhead_s", "data_s")


def what_hinders(entry: Entry, others: Sequence[Entry]) -> str:
    """Says why an entry is not faster, and what it pays in learning."""
    parts = entry.breakdown
    if entry.status != "ok" and not entry.ok:
        return f"It gave no figures ({entry.status}): {brief(entry.reason)}"
    if parts is None:
        return "Its steps were not inspected, so nothing is known of what holds it back."
    whole = sum(parts.values())
    shares = {name: parts[name] / whole for name in _CAUSES}
    told = [
        _cause(name, shares[name], parts[name], entry)
        for name in sorted(_CAUSES, key=lambda name: -shares[name])
        if shares[name] >= LEAST_SHARE
    ][:2]
    if not told:
        told = [f"Almost nothing: {parts['compute_s'] / whole:.0%} of a step is computing."]
    extra = [_dear_compute(entry, others), _worse_learning(entry, others)]
    return " ".join([*told, *(text for text in extra if text)])


def _cause(name: str, share: float, seconds: float, entry: Entry) -> str:
    amount = f"{share:.0%} of a step ({show_seconds(seconds)})"
    if name == "exposed_comm_s":
        sent = entry.sent_bytes
        bytes_told = f"; {show_bytes(sent)} are sent a step" if sent else ""
        return f"Communication that nothing hides takes {amount}{bytes_told}."
    if name == "bubble_s":
        return f"Ranks wait {amount} while another one computes what they need."
    if name == "overhead_s":
        return f"Overhead between ops takes {amount}: the ops are too small to hide Python and its calls."
    return f"Fetching batches takes {amount}."


def _dear_compute(entry: Entry, others: Sequence[Entry]) -> str | None:
    """Work that is done more than once shows in the sum of all ranks' computing."""
    reference = next((one for one in others if one.strategy == SINGLE), None)
    if reference is None or reference is entry or reference.breakdown is None or entry.breakdown is None:
        return None
    spent = entry.breakdown["compute_s"] * entry.devices / entry.batch
    needed = reference.breakdown["compute_s"] * reference.devices / reference.batch
    if not needed or spent < _SLOWER_COMPUTE * needed:
        return None
    return f"Its ops together take {spent / needed:.1f} times the computing of one device."


def _worse_learning(entry: Entry, others: Sequence[Entry]) -> str | None:
    exact = [(one.loss, one) for one in others if one.exact and one.loss is not None]
    if entry.exact or entry.loss is None or not exact:
        return None
    loss, best = min(exact, key=lambda pair: pair[0])
    if entry.loss <= loss * (1 + _WORSE_LOSS):
        return None
    losses = f"loss {entry.loss:.3f}, exact training {loss:.3f}"
    if entry.samples == best.samples:
        return f"It learns less from the same samples: {losses}."
    return f"It ends with more loss, after {samples_told(entry, best)}: {losses}."
