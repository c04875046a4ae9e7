"""Emulated nodes: their links, their ranks, and that nothing of them remains."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from syncline.errors import ClusterError, DataError
from syncline.launch import supervision
from syncline.launch.emulated import check_emulation_possible, launch_emulated, parse_emulation
from syncline.launch.link import LinkBytes, emulated_network, read_link_bytes
from syncline.launch.namespaces import enter_command, network_namespace, run_batch
from syncline.launch.stopping import LaunchStopped

pytestmark = pytest.mark.emulated
TRANSFER = str(Path(__file__).parent / "transfer.py")


@pytest.fixture(autouse=True)
def _host_is_untouched():
    try:
        check_emulation_possible()
    except ClusterError as error:
        pytest.skip(str(error))
    before = host_links()
    yield
    assert host_links() == before


def host_links():
    return [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()]


def launch(program, argument, tmp_path, text, **options):
    emulation = parse_emulation(text)
    return launch_emulated(
        f"rank_programs:{program}", str(argument), emulation=emulation, logs=tmp_path / "logs", **options
    )


def is_sent(counted, payload):
    """Whether links carried that much, with headers and what TCP sends twice where cores are busy."""
    return payload <= counted < 1.1 * payload


def transfer(text, count):
    """Bits per second from node 0 to the last node, and what the nodes sent."""
    with emulated_network(parse_emulation(text)) as nodes:
        first, last = nodes[0], nodes[-1]
        program = [sys.executable, TRANSFER]
        receive = [*enter_command(last.holder), *program, "receive"]
        with subprocess.Popen(receive, stdout=subprocess.PIPE) as receiver:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            send = [*enter_command(first.holder), *program, "send", last.address, str(count)]
            rate = float(subprocess.check_output(send, timeout=30))
        return rate, sum((read_link_bytes(n.holder) for n in nodes), LinkBytes(inside=0, between=0))


@pytest.mark.parametrize("text", ["2x1@100mbit", "3x1@1gbit"])
def test_links_keep_their_rate_and_count(text):
    limit = parse_emulation(text).bits_per_s
    assert limit is not None
    rate, sent = transfer(text, 10_000_000)
    # Other work on the machine may slow a transfer down; nothing may speed it up.
    assert 0.5 * limit < rate < 1.05 * limit
    assert is_sent(sent.between, 10_000_000)
    assert sent.inside == 0


def test_links_without_a_limit_are_faster():
    assert transfer("2x1", 20_000_000)[0] > 400e6


def test_traffic_of_one_node_stays_inside():
    rate, sent = transfer("1x2@100mbit", 10_000_000)
    assert rate > 400e6
    assert is_sent(sent.inside, 10_000_000)
    assert sent.between < 1000


def test_what_the_network_tools_say_is_shown():
    with (
        network_namespace() as holder,
        pytest.raises(ClusterError, match=r"ip says\n.*nowhere"),
    ):
        run_batch(holder, "ip", ["link set nowhere up"])


def test_ranks_of_all_nodes_train_together(tmp_path, capfd):
    sent = launch("reduce", tmp_path, tmp_path, "2x2")
    told = [json.loads((tmp_path / f"told-{rank}").read_text()) for rank in range(4)]
    assert [(each["local_rank"], each["local_world_size"]) for each in told] == [(0, 2), (1, 2)] * 2
    assert {each["interface"] for each in told} == {"eth0"}
    assert [each["addresses"] for each in told] == [["10.213.0.101"]] * 2 + [["10.213.0.102"]] * 2
    # Of the ring's four edges, each with 2 M (n - 1) / n bytes, two cross the nodes.
    expected = 2 * 2 * 20_000_000 * 3 / 4
    assert is_sent(sent.between, expected)
    assert is_sent(sent.inside, expected)
    # Sockets and links agree, and ranks can read the links themselves.
    assert sum(each["network"] for each in told) == pytest.approx(expected, rel=0.03)
    assert told[0]["node_between"] + told[2]["node_between"] == pytest.approx(sent.between, rel=0.03)
    assert capfd.readouterr() == ("rank 0 speaks\n", "")
    assert "rank 3 speaks" in (tmp_path / "logs/rank-3.log").read_text()


def test_a_killed_rank_a_restart_and_an_error_of_the_user(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(supervision, "FAILURE_GRACE_S", 1.0)
    with pytest.raises(DataError, match="no such corpus"):
        launch("fail", "kill+deaf,known+deaf", tmp_path, "2x1@1gbit", max_restarts=1)
    log = (tmp_path / "logs/rank-1.log").read_text()
    assert log.count("last words") == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("_handlers_come_back")
def test_a_stop_lets_ranks_save(tmp_path, ready):
    thread = ready.then_signal(signal.SIGTERM)
    with pytest.raises(LaunchStopped) as caught:
        launch("save_when_stopped", tmp_path, tmp_path, "2x1")
    thread.join()
    assert caught.value.signal_number == signal.SIGTERM
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == ["SIGTERM"] * 2


def test_nothing_remains_of_a_killed_launcher(tmp_path, ready, descendants, expect_dead, program_environment):
    code = (
        "from pathlib import Path\n"
        "from syncline.launch.emulated import launch_emulated, parse_emulation\n"
        f"folder, emulation = {str(tmp_path)!r}, parse_emulation('2x1@1gbit')\n"
        "launch_emulated('rank_programs:never_stop', folder, emulation=emulation, logs=Path(folder))\n"
    )
    during = host_links()
    with subprocess.Popen([sys.executable, "-c", code], env=program_environment) as launcher:
        pids = ready.wait()
        everyone = descendants(launcher.pid)
        namespaces = {Path(f"/proc/{pid}/ns/net").readlink() for pid in everyone}
        assert set(pids) < set(everyone)
        assert len(namespaces) == 3
        assert host_links() == during
        launcher.kill()
    expect_dead(everyone)
    start = time.monotonic()
    while namespaces & living_namespaces():
        assert time.monotonic() - start < 10
        time.sleep(0.1)


def living_namespaces():
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(path.readlink())
        except OSError:
            continue
    return found
