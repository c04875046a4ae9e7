"""The text of an emulated cluster, and machines that cannot emulate."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncline.cluster.emulation import Emulation, parse_emulation
from syncline.errors import ClusterError
from syncline.launch.emulated import check_emulation_possible
from syncline.launch.link import node_address


@pytest.mark.parametrize(
    ("text", "nodes", "ranks", "rate"),
    [
        ("2x2@200mbit", 2, 2, 200e6),
        ("2x2", 2, 2, None),
        ("1x8@1.5Gbit", 1, 8, 1.5e9),
        ("16x1@512kbit", 16, 1, 512e3),
    ],
)
def test_parse(text, nodes, ranks, rate):
    emulation = parse_emulation(text)
    assert emulation == Emulation(nodes=nodes, ranks_per_node=ranks, bits_per_s=rate)
    assert emulation.world_size == nodes * ranks


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("2", "2x2@200mbit"),
        ("2x", "2x2@200mbit"),
        ("2x2@", "2x2@200mbit"),
        ("2x2@fast", "2x2@200mbit"),
        ("2x2@200", "kbit, mbit, gbit"),
        ("2x2@200mb", "kbit, mbit, gbit"),
        ("0x2", "0 nodes"),
        ("65x1", "1 to 64"),
        ("2x0", "0 ranks"),
        ("2x2@0mbit", "10kbit or more"),
    ],
)
def test_wrong_texts(text, part):
    with pytest.raises(ClusterError, match=part):
        parse_emulation(text)


@given(st.text(alphabet="0123456789x@.kmgbit ", max_size=12))
def test_every_text_parses_or_is_refused(text):
    with contextlib.suppress(ClusterError):
        assert parse_emulation(text).world_size >= 1


def test_addresses_are_in_the_order_of_nodes():
    addresses = [node_address(index) for index in range(64)]
    assert addresses == sorted(addresses)


@pytest.fixture
def capable(monkeypatch):
    """As if this machine could emulate."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: f"/bin/{tool}")
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    check_emulation_possible()
    return monkeypatch


def test_not_linux(capable):
    capable.setattr(sys, "platform", "darwin")
    with pytest.raises(ClusterError, match="Linux"):
        check_emulation_possible()


@pytest.mark.parametrize(
    ("tool", "package"), [("ip", "iproute2"), ("tc", "iproute2"), ("setpriv", "util-linux")]
)
def test_a_tool_is_missing(capable, tool, package):
    capable.setattr(shutil, "which", lambda name, path=None: None if name == tool else name)
    with pytest.raises(ClusterError, match=rf"'{tool}'.*\n.*apt install {package}"):
        check_emulation_possible()


def test_not_root(capable):
    capable.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="run this as root"):
        check_emulation_possible()


def test_a_container_without_rights(capable):
    refused = subprocess.CompletedProcess([], 1, "", "unshare failed: Operation not permitted")
    capable.setattr(subprocess, "run", lambda *_, **__: refused)
    with pytest.raises(ClusterError, match=r"not permitted\n.*SYS_ADMIN"):
        check_emulation_possible()
