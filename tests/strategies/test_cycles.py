"""DASO's schedule, its merge formulas, and which rank speaks when: arithmetic in one process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncline.errors import StrategyError
from syncline.strategies.averaging.merging import ByDelta, ByPaper, ByReplacing
from syncline.strategies.averaging.naming import find_saved, is_optional
from syncline.strategies.averaging.nodes import NodeMap
from syncline.strategies.averaging.review import Review, Reviewed
from syncline.strategies.averaging.rooms import Rooms
from syncline.strategies.averaging.schedule import (
    PIECES,
    CycleSchedule,
    Phase,
    Phases,
    Plateau,
    Rates,
    hiding_rates,
    tight_rates,
)
from syncline.strategies.averaging.wire import Average, Sent, Wire
from syncline.strategies.daso import Daso
from syncline.strategies.registry import parse_strategy


def rates_after(schedule: CycleSchedule, losses: list[float]) -> list[tuple[int, int, int]]:
    """B, L and W in force after each review."""
    seen = []
    for loss in losses:
        schedule.review(loss)
        schedule.settle()
        rates = schedule.rates
        seen.append((rates.sync_every, rates.local_skip, rates.wait))
    return seen


def test_the_published_schedule_for_a_flat_loss():
    seen = rates_after(Daso().first_schedule(), [1.0] * 16)
    # The first loss is the best so far; then every third one in a row that is no better counts.
    assert seen[:3] == [(4, 1, 1)] * 3
    assert seen[3:6] == [(2, 1, 1)] * 3
    assert seen[6:9] == [(1, 1, 1)] * 3
    assert seen[9:12] == [(8, 2, 2)] * 3
    assert seen[12:15] == [(4, 1, 1)] * 3
    assert seen[15] == (2, 1, 1)


def test_a_falling_loss_changes_nothing():
    falling = [0.94**number for number in range(12)]
    assert set(rates_after(Daso().first_schedule(), falling)) == {(4, 1, 1)}
    # 4 % are too little of an improvement, though they add up: the best is kept.
    slow = [0.96**number for number in range(3)]
    assert rates_after(Daso().first_schedule(), slow)[-1] == (4, 1, 1)


@pytest.mark.parametrize(
    ("losses", "fires"),
    [
        ([1.0, 1.0, 1.0, 1.0], [False, False, False, True]),
        ([1.0, 0.96, 0.94, 0.94, 0.94, 0.94], [False] * 5 + [True]),
        ([1.0, 1.0, 1.0, 0.5, 0.5, 0.5], [False] * 6),
        ([-1.0, -1.04, -1.06, -1.06, -1.1], [False, False, False, False, False]),
    ],
)
def test_plateaus(losses, fires):
    plateau = Plateau()
    assert [plateau.review(loss) for loss in losses] == fires


def test_auto_hides_exchanges_and_tightens():
    schedule = Daso(sync_every="auto").first_schedule()
    schedule.review(1.0, exchange_steps=8.0)
    schedule.settle()
    # All weights take eight steps, so a quarter of them takes two.
    assert schedule.rates == Rates(4, 2, pieces=PIECES // 4)
    schedule.review(0.94, exchange_steps=8.0)
    schedule.settle()
    assert schedule.rates == Rates(4, 2, pieces=PIECES // 4)
    # It has fallen by less than 5 %.
    schedule.review(0.9, exchange_steps=8.0)
    schedule.settle()
    assert schedule.rates == Rates(2, 2)
    schedule.review(0.1, exchange_steps=0.2)
    schedule.settle()
    assert schedule.rates == Rates(2, 1)


@given(exchange_steps=st.floats(0.0, 400.0))
def test_what_auto_sends_at_a_time_arrives_in_its_wait(exchange_steps):
    rates = hiding_rates(exchange_steps)
    assert rates.sync_every == max(4, 2 * rates.wait)
    assert 1 <= rates.pieces <= PIECES
    taken = exchange_steps * rates.pieces / PIECES
    assert taken <= rates.wait + 1e-5
    # No longer than two steps, unless a single piece takes longer; and no less than what would fit.
    assert rates.wait <= 2 or rates.pieces == 1
    assert rates.pieces == PIECES or exchange_steps * (rates.pieces + 1) / PIECES > 2 - 1e-5


@given(exchange_steps=st.floats(0.0, 400.0))
def test_with_a_flat_loss_auto_averages_every_weight_in_every_other_step(exchange_steps):
    rates = tight_rates(exchange_steps)
    assert (rates.sync_every, rates.pieces) == (2, PIECES)
    # It waits only where the link cannot do that.
    assert exchange_steps <= rates.wait + 1e-5 or rates.wait == 2


@given(exchange_steps=st.floats(0.0, 2.0))
def test_with_a_flat_loss_exchanges_that_ranks_work_on_for_long_are_rarer(exchange_steps):
    often = tight_rates(exchange_steps, handling_steps=0.06)
    assert often == tight_rates(exchange_steps)
    rare = tight_rates(exchange_steps, handling_steps=0.07)
    assert rare == replace(often, sync_every=4)


@given(exchange_steps=st.floats(0.0, 2.0))
def test_work_on_exchanges_is_borne_where_data_parallelism_would_stand_still_for_longer(exchange_steps):
    often = tight_rates(exchange_steps)
    # It hides two thirds of a step behind its backward pass.
    assert tight_rates(exchange_steps, handling_steps=0.25, gradient_steps=0.8) == often
    assert tight_rates(exchange_steps, handling_steps=0.25, gradient_steps=2 / 3).sync_every == 4
    assert tight_rates(exchange_steps, handling_steps=0.4, gradient_steps=0.8).sync_every == 4


def test_a_slow_link_decides_how_often_whatever_ranks_work():
    assert tight_rates(3.0, handling_steps=5.0) == tight_rates(3.0)


def test_auto_takes_what_exchanges_cost_from_its_reviews():
    schedule = Daso(sync_every="auto").first_schedule()
    # Where ranks worked on no exchange, what was found before still holds.
    for handling_steps, every in ((0.5, 4), (None, 4), (0.05, 2), (None, 2)):
        schedule.review(1.0, 0.5, handling_steps)
        schedule.review(1.0, 0.5, handling_steps)
        schedule.settle()
        assert schedule.rates == Rates(every, 1)


def test_a_review_tells_the_cost_of_a_whole_exchange(monkeypatch):
    """Sending and merging are half of one each, and a part of the weights counts for its share."""
    clock = iter((0.0, 2.0))
    monkeypatch.setattr("syncline.strategies.averaging.review.time.perf_counter", lambda: next(clock))
    review = Review(1, torch.device("cpu"))
    for _ in range(2):
        review.tick(0.0)
    review.note_handling(0.25, share=0.5)
    review.note_handling(0.75, share=0.5)
    review.add(torch.tensor(3.0))
    review.apply({"collected": 1, "posted": [[7, review.rank_tensor().tolist()]]}, torch.zeros(6))
    assert review.take(6) == []
    assert review.take(7) == [Reviewed(loss=3.0, exchange_steps=None, handling_steps=1.0)]


def test_an_exchange_that_takes_its_whole_wait_keeps_its_rates():
    """What is measured in whole steps must not make the rates creep."""
    for pieces in range(1, PIECES + 1):
        rates = hiding_rates(2 * PIECES / pieces)
        assert (rates.pieces, rates.wait) == (pieces, 2)
    assert hiding_rates(1e9).wait == 64


def test_rates_change_only_when_nothing_is_under_way():
    schedule = Daso().first_schedule()
    for _ in range(4):
        schedule.review(1.0)
    assert schedule.rates == Rates(4, 1)
    schedule.place = 3
    schedule.settle()
    assert schedule.rates == Rates(2, 1)
    assert schedule.starts_now()


@given(
    sync_every=st.integers(1, 9), skip=st.integers(1, 4), steps=st.integers(1, 60), reviews=st.integers(0, 20)
)
def test_a_schedule_goes_through_a_checkpoint(sync_every, skip, steps, reviews):
    schedule = CycleSchedule(rates=Rates(sync_every, 1, skip), reset=8)
    for _ in range(steps):
        schedule.advance()
    for _ in range(reviews):
        schedule.review(1.0)
    again = CycleSchedule.of_state(json.loads(json.dumps(schedule.state())))
    assert again == schedule
    assert again.rates.wait <= again.rates.sync_every


def test_phases():
    phases = Phases(warm_up=2, cool_down=3, steps=10)
    kinds = [phases.of(step) for step in range(1, 11)]
    assert kinds == [Phase.BLOCKING] * 2 + [Phase.CYCLING] * 5 + [Phase.BLOCKING] * 3
    assert [step for step in range(1, 11) if phases.ends_cycling(step)] == [7]
    assert [step for step in range(1, 11) if Phases(warm_up=0, cool_down=0, steps=10).ends_cycling(step)] == [
        10
    ]
    assert not any(Phases(warm_up=0, cool_down=5, steps=None).ends_cycling(step) for step in range(1, 99))


@pytest.mark.parametrize(("waited", "own"), [(0, 1), (1, 2), (2, 4), (3, 6)])
@pytest.mark.parametrize("nodes", [2, 3, 64])
def test_merge_formulas(waited, own, nodes):
    torch.manual_seed(0)
    now, sent = torch.randn(nodes, 5, dtype=torch.float64), torch.randn(nodes, 5, dtype=torch.float64)
    mean = sent.mean(0)

    def merged(rule, node):
        average = Average(mean.clone(), Sent(values=mean, stood=sent[node]))
        merge = rule.merge([rule.tell(average)], waited)
        return merge.keep * now[node] + merge.changes[0]

    torch.testing.assert_close(merged(ByPaper(nodes), 0), (own * now[0] + sent.sum(0)) / (own + nodes))
    torch.testing.assert_close(merged(ByReplacing(), 0), mean)
    # All that every node did since it sent is kept, and the means agree.
    torch.testing.assert_close(torch.stack([merged(ByDelta(), i) for i in range(nodes)]) - mean, now - sent)


@pytest.mark.parametrize("wire", ["bf16", "fp16"])
def test_a_16_bit_wire_loses_nothing(wire):
    """Two nodes that move by less than 16 bits can tell beside a weight of 1, by different amounts."""
    start = torch.ones(64)
    nodes = [start.clone(), start.clone()]
    wires = [Wire(wire, 2, start) for _ in nodes]
    wanted = start.clone().double()
    for _ in range(200):
        moves = [1e-5 * torch.rand(64), 1e-3 * torch.rand(64)]
        wanted += (moves[0].double() + moves[1].double()) / 2
        nodes = [node + move for node, move in zip(nodes, moves, strict=True)]
        sent = [
            each.encode(node, 1.0, torch.empty_like(node, dtype=each.dtype), Rooms())
            for each, node in zip(wires, nodes, strict=True)
        ]
        total = sent[0].values + sent[1].values
        for bucket in sent:
            bucket.values = total
        averages = [each.decode(bucket, Rooms()) for each, bucket in zip(wires, sent, strict=True)]
        assert torch.equal(averages[0].mean, averages[1].mean)
        nodes = [average.own() for average in averages]
    moved = (wanted - 1).abs().max()
    assert (torch.stack(nodes).double().mean(0) - wanted).abs().max() < 0.01 * moved
    assert (nodes[0] - nodes[1]).abs().max() < 0.01 * moved


def test_fp16_takes_what_is_too_large_in_several_turns():
    wires = [Wire("fp16", 2, torch.zeros(1)) for _ in range(2)]
    nodes = [torch.tensor([1e5]), torch.tensor([1e5])]
    for _ in range(12):
        sent = [
            each.encode(node, 1.0, torch.empty_like(node, dtype=each.dtype), Rooms())
            for each, node in zip(wires, nodes, strict=True)
        ]
        assert all(bucket.values.isfinite().all() for bucket in sent)
        total = sent[0].values + sent[1].values
        for bucket in sent:
            bucket.values = total
        means = [each.decode(bucket, Rooms()) for each, bucket in zip(wires, sent, strict=True)]
        nodes = [average.own() for average in means]
    assert means[0].mean.item() == pytest.approx(1e5, rel=1e-2)


def test_nodes_of_any_size_speak_in_turn():
    nodes = NodeMap.of_sizes([3, 1, 2])
    assert nodes.ranks == ((0, 1, 2), (3,), (4, 5))
    assert [nodes.speakers(turn) for turn in range(nodes.turns)] == [(0, 3, 4), (1, 3, 5), (2, 3, 4)]
    assert [nodes.node_of(rank) for rank in range(6)] == [0, 0, 0, 1, 2, 2]
    assert [nodes.share(node) for node in range(3)] == [1.5, 0.5, 1.0]


def test_names_in_a_checkpoint():
    saved = {"model.w", "nodes.1.model.w", "nodes.1.ranks.3.model.w", "averaging.schedule"}
    third = ("nodes.1.ranks.3.", "nodes.1.", "")
    assert find_saved({"nodes.1.model.w": 0}, saved, third) == {"nodes.1.model.w": "nodes.1.ranks.3.model.w"}
    second = ("nodes.1.ranks.2.", "nodes.1.", "")
    assert find_saved({"nodes.1.model.w": 0}, saved, second) == {"nodes.1.model.w": "nodes.1.model.w"}
    assert find_saved({"nodes.2.model.w": 0}, saved, ("nodes.2.", "")) == {"nodes.2.model.w": "model.w"}
    # A strategy whose ranks are all the same never takes another node's weights.
    assert find_saved({"model.w": 0}, saved, ("",)) == {"model.w": "model.w"}
    assert is_optional("nodes.1.ranks.3.averaging.reviewed")
    assert not is_optional("model.averaging.weight")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("daso:warm-up=0.6,cool-down=0.6", "together more than all of it"),
        ("daso:sync-every=2,wait=3", "wait=3 is longer than sync-every=2"),
        ("daso:sync-every=0", "sync-every is 0"),
        ("daso:sync-every=auto,wait=2", "auto chooses how long to wait"),
        ("daso:node-rate=0", "node-rate is 0"),
        ("daso:sync-every=auto,local-skip=2", "averages inside nodes in every step"),
        ("daso:on-node-loss=continue,node-size=1", "takes machines for nodes"),
        ("daso:inside=sharded,local-skip=2", "needs whole weights"),
        ("daso:warm-up=1.5", "warm-up is 1.5"),
        ("daso:sync-every=often", "it takes a whole number or auto"),
        ("diloco:delay=40", "delay is 40"),
        ("diloco:fragments=0", "fragments is 0"),
        ("diloco:outer-lr=0", "outer-lr is 0"),
        ("hierarchical:inside-every=8,sync-every=8", "below the second"),
        ("local-sgd:sync-every=0", "sync-every is 0"),
        ("data:compress=zip", "takes none, fp16 or powersgd"),
    ],
)
def test_mistakes_are_told(text, words):
    with pytest.raises(StrategyError, match=words):
        parse_strategy(text)


def test_a_node_size_that_does_not_fit():
    with pytest.raises(StrategyError, match=r"node-size=3 does not divide the 4 ranks.\nUse one of 1, 2, 4"):
        parse_strategy("daso:node-size=3").check(world_size=4, global_batch=8, accumulate=1)
