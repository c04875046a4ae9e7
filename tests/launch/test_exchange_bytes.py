"""What exchanges between nodes put on the link, counted on the interface."""

import json

import pytest
from node_programs import EXCHANGES, NUMBERS

from syncline.errors import ClusterError
from syncline.launch.emulated import check_emulation_possible, launch_emulated, parse_emulation

pytestmark = pytest.mark.emulated


def test_one_rank_of_each_node_sends_what_the_formula_says(tmp_path):
    try:
        check_emulation_possible()
    except ClusterError as error:
        pytest.skip(str(error))
    launch_emulated(
        "node_programs:count_bytes", str(tmp_path), emulation=parse_emulation("2x2"), logs=tmp_path / "logs"
    )
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(4)]
    assert [each["node"] for each in told] == [0, 0, 1, 1]
    assert told[0]["buckets"] == 2
    # 2 M (N - 1) / N with N = 2 nodes: as many bytes as the weights have, whichever ranks a node has.
    weights_bytes = 4 * NUMBERS
    for node in (told[0], told[2]):
        assert node["fp32"] / EXCHANGES == pytest.approx(weights_bytes, rel=0.03)
        assert node["bf16"] / EXCHANGES == pytest.approx(weights_bytes / 2, rel=0.03)
        assert node["fp16"] / EXCHANGES == pytest.approx(weights_bytes / 2, rel=0.03)
