"""Memory of exchanges is used again, and what was learned with it is the same."""

from __future__ import annotations

import pytest
import torch

from nodes_of_ranks import adam, open_step, train_step
from syncline.strategies.averaging.cycling import CyclingStep
from syncline.strategies.averaging.rooms import Rooms
from syncline.strategies.averaging.wire import Wire

CPU = torch.device("cpu")


def test_rooms_are_used_again_until_a_new_size_is_asked_for():
    rooms = Rooms()
    one, other = (rooms.take(4, torch.float32, CPU) for _ in range(2))
    half = rooms.take(4, torch.bfloat16, CPU)
    assert one is not other
    for room in (one, half):
        rooms.give(room)
    assert rooms.take(4, torch.bfloat16, CPU) is half
    assert rooms.take(4, torch.float32, CPU) is one
    third = rooms.take(4, torch.float32, CPU)
    assert third is not one
    assert third is not other
    rooms.give(other)
    rooms.take(5, torch.float32, CPU)
    assert rooms.take(4, torch.float32, CPU) is not other


def addresses(options: str) -> list[set[int]]:
    """Where what is sent lies in memory, exchange after exchange."""
    step = open_step(
        f"daso:warm-up=0,cool-down=0,review-every=1000,sync-every=2,wait=1{options}", make_optimizer=adam
    )
    assert isinstance(step, CyclingStep)
    seen = []
    for number in range(8):
        train_step(step, number)
        if (under_way := step.weights.under_way) is not None:
            pending = under_way.pending
            stood = [sent.stood for sent in pending.sent]
            said = [sent.said for sent in pending.sent if sent.said is not None]
            seen.append({tensor.data_ptr() for tensor in (*stood, *pending.flats, *said)})
    return seen


@pytest.mark.parametrize("options", ["", ",wire=bf16", ",wire=fp16"])
def test_exchanges_use_the_same_memory(options, run_ranks):
    first, *others = run_ranks(addresses, 2, options)[0]
    assert len(others) == 3
    assert all(other == first for other in others)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_what_16_bits_do_not_say_stays_in_the_node(wire):
    """Two nodes exchange twice, in more numbers than are worked on at a time."""
    torch.manual_seed(0)
    start, rooms = torch.randn(2**18 + 5), Rooms()
    wires = [Wire(wire, 2, start) for _ in range(2)]
    nodes = [start + 1e-3 * torch.randn_like(start) for _ in wires]
    for _ in range(2):
        wanted = (nodes[0] + nodes[1]) / 2
        sent = [
            each.encode(node, 1.0, torch.empty_like(node, dtype=each.dtype), rooms)
            for each, node in zip(wires, nodes, strict=True)
        ]
        assert wires[0].reference is not None
        before, total = wires[0].reference.clone(), sent[0].values + sent[1].values
        for at, (each, bucket) in enumerate(zip(wires, sent, strict=True)):
            said = bucket.values.float() / bucket.factor
            bucket.values = total.clone()
            average = each.decode(bucket, rooms)
            mean, movement = average.mean.clone(), average.movement().clone()
            torch.testing.assert_close(mean, wanted, rtol=0, atol=2e-5)
            torch.testing.assert_close(before + said + movement, mean, rtol=0, atol=1e-6)
            left = nodes[at] - before - said
            torch.testing.assert_close(average.own() - mean, left, rtol=0, atol=1e-6)
            nodes[at] = nodes[at] + movement
        assert wires[1].reference is not None
        assert torch.equal(wires[0].reference, wires[1].reference)
        # The sum of what was said has 16 bits, too.
        torch.testing.assert_close((nodes[0] + nodes[1]) / 2, wanted, rtol=0, atol=1e-5)
