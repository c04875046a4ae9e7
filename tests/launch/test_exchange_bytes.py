"""What exchanges between nodes put on the link, counted on the interface, and the rates they lead to."""

import itertools
import json

import pytest
from node_programs import EXCHANGES, NUMBERS

from syncline.errors import ClusterError
from syncline.launch.emulated import check_emulation_possible, launch_emulated, parse_emulation

pytestmark = pytest.mark.emulated


def launch(program, folder, text):
    try:
        check_emulation_possible()
    except ClusterError as error:
        pytest.skip(str(error))
    emulation = parse_emulation(text)
    launch_emulated(f"node_programs:{program}", str(folder), emulation=emulation, logs=folder / "logs")
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(emulation.world_size)]


def test_one_rank_of_each_node_sends_what_the_formula_says(tmp_path):
    told = launch("count_bytes", tmp_path, "2x2")
    assert [each["node"] for each in told] == [0, 0, 1, 1]
    assert told[0]["buckets"] == 2
    # 2 M (N - 1) / N with N = 2 nodes: as many bytes as the weights have, whichever ranks a node has.
    weights_bytes = 4 * NUMBERS
    for node, (wire, expected) in itertools.product(
        (told[0], told[2]),
        (("fp32", weights_bytes), ("bf16", weights_bytes / 2), ("fp16", weights_bytes / 2)),
    ):
        assert len(node[wire]) == EXCHANGES
        # On busy cores TCP takes frames that overtake each other for lost ones, and sends them twice.
        assert min(node[wire]) == pytest.approx(expected, rel=0.03)


def test_auto_sends_what_a_slow_link_takes_in_two_steps(tmp_path):
    first, second = launch("choose_rates", tmp_path, "2x1@20mbit")
    assert first == second
    # 1.1 MB take 450 ms, and a step of this model a few: even one piece takes several.
    assert first["pieces"] == 1
    assert first["wait"] >= 2
    assert first["sync_every"] == 2 * first["wait"]
    assert first["due"] == 4 + first["wait"]
    # One piece of 16 arrives in its wait, and no sooner.
    assert 16 * (first["wait"] - 1) < first["gradient_steps"]


def test_ranks_of_a_node_share_what_arrives_late_in_one_order(tmp_path):
    told = launch("merge_late", tmp_path, "2x2@20mbit")
    assert max(each["exposed_s"] for each in told) > 0
    assert told[0]["sum"] == told[1]["sum"]
    assert told[2]["sum"] == told[3]["sum"]
