"""What a run looks like on a terminal."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from contextlib import contextmanager
from pathlib import Path

import pytest

from command import SYNCLINE

pytestmark = pytest.mark.timeout(300)

PROGRAMS = Path(__file__).parent
TRAIN = (*SYNCLINE, "train", "own_models:net", "--strategy", "single", "-o", "run")
COLUMNS = 60
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A terminal and the process that writes its errors there."""

    def __init__(self, command, folder):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        variables = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(PROGRAMS)}
        variables.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
        )
        os.close(slave)
        self.text = ""

    def read_on(self):
        """Take in what was written; False at the end."""
        try:
            self.text += os.read(self._master, 65536).decode()
        except OSError:
            return False
        return True

    def close(self):
        self.process.kill()
        self.process.communicate()
        os.close(self._master)

    @property
    def lines(self):
        """What stands on the screen: of a line that was written again and again, the last."""
        plain = ESCAPES.sub("", self.text).replace("\r\n", "\n")
        return [line.split("\r")[-1].rstrip() for line in plain.split("\n")]


@contextmanager
def screen_of(command, folder):
    screen = Screen(command, folder)
    try:
        yield screen
    finally:
        screen.close()


def test_a_bar_that_fits_the_terminal(tmp_path):
    with screen_of((*TRAIN, "--steps", "12"), tmp_path) as screen:
        while screen.read_on():
            pass
        assert screen.process.wait(60) == 0
    lines = [line for line in screen.lines if not line.startswith("a word ")]
    assert lines[0] == "Starting 1 rank; the run's folder is run"
    assert lines[1] == "own_models:net single x1"
    assert re.fullmatch(r"━+ +12/12 loss \d\.\d{4} [\d.]+ samples/s 0:00:00", lines[2]), lines
    assert len(lines[2]) <= COLUMNS
    assert lines[3].startswith("strategy ")
    assert "single (exact), 1 rank, local" in lines[3]
    assert screen.text.count(HIDE_CURSOR) == screen.text.count(SHOW_CURSOR) == 1


def test_a_killed_rank_leaves_a_usable_terminal(tmp_path):
    (tmp_path / "pace").write_text("0.1")
    with screen_of((*TRAIN, "--steps", "10000"), tmp_path) as screen:
        while "loss 1." not in screen.text:
            assert screen.read_on(), screen.text
        os.kill(int((tmp_path / "pid-0").read_text()), signal.SIGKILL)
        while screen.read_on():
            pass
        assert screen.process.wait(60) == 1
    start = next(number for number, line in enumerate(screen.lines) if line.startswith("╭"))
    assert "loss" in screen.lines[start - 1]
    assert "Rank 0 was killed by SIGKILL" in screen.lines[start + 1]
    assert screen.text.rindex(SHOW_CURSOR) > screen.text.rindex(HIDE_CURSOR)
