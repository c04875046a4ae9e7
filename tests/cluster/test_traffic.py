"""Bytes sent by this process, as the kernel counts them."""

import socket
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from syncline.cluster import traffic
from syncline.cluster.traffic import TrafficMeter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")


def reduce_ten_megabytes(in_second_group):
    group = dist.new_group(backend="gloo") if in_second_group else dist.group.WORLD
    assert not isinstance(group, int)
    meter = TrafficMeter()
    dist.all_reduce(torch.ones(2_500_000), group=group)
    dist.barrier(group)
    return meter.sent()


@pytest.mark.parametrize("in_second_group", [False, True])
def test_an_all_reduce_sends_what_the_ring_says(run_ranks, in_second_group):
    for sent in run_ranks(reduce_ten_megabytes, 2, in_second_group):
        # 2 M (n - 1) / n with n = 2 ranks and M = 10 MB.
        assert sent["node"] == pytest.approx(10_000_000, rel=0.03)
        assert sent["network"] == 0


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def connection(request):
    """Torch's store listens on both versions of IP, so that its peers have mapped addresses."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server:
        client = socket.socket(family)
        client.connect((request.param, server.getsockname()[1]))
        accepted, _ = server.accept()
        with client, accepted:
            yield client, accepted


def send(connection, count):
    client, accepted = connection
    client.sendall(bytes(count))
    accepted.settimeout(5)
    while count:
        count -= len(accepted.recv(count))


def test_only_what_comes_after_the_meter_counts(connection):
    send(connection, 5000)
    meter = TrafficMeter()
    assert meter.sent() == {"node": 0, "network": 0}
    send(connection, 3000)
    assert meter.sent() == {"node": 3000, "network": 0}


def test_closed_connections_keep_their_count(connection):
    meter = TrafficMeter()
    send(connection, 3000)
    meter.sent()
    for end in connection:
        end.close()
    assert meter.sent() == {"node": 3000, "network": 0}


def test_the_mode_of_a_connection_is_left_alone(connection):
    socket.setdefaulttimeout(3)
    try:
        TrafficMeter().sent()
    finally:
        socket.setdefaulttimeout(None)
    assert all(end.getblocking() for end in connection)
    assert _is_blocking_in_kernel(connection[0])


def _is_blocking_in_kernel(end):
    flags = Path(f"/proc/self/fdinfo/{end.fileno()}").read_text().split("flags:")[1].split()[0]
    return not int(flags, 8) & socket.SOCK_NONBLOCK


def test_other_hosts_are_between_nodes(connection, monkeypatch):
    monkeypatch.setattr(traffic, "_is_own_address", lambda address: False)
    meter = TrafficMeter()
    send(connection, 3000)
    assert meter.sent() == {"node": 0, "network": 3000}


def test_addresses_of_peers_are_read_whole(connection, monkeypatch):
    peers = []
    monkeypatch.setattr(traffic, "_is_own_address", peers.append)
    for end in connection:
        traffic._read_connection(end.fileno())
    assert peers == [end.getpeername()[0] for end in connection]


@pytest.mark.parametrize(("address", "own"), [("127.0.0.1", True), ("::1", True), ("192.0.2.7", False)])
def test_own_addresses(address, own):
    assert traffic._is_own_address(address) is own


def test_no_counters(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert TrafficMeter().sent() is None
