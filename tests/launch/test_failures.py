"""Files of failed ranks, and the errors made of them; restarts."""

import signal

import pytest

from syncline.errors import ConfigError, DataError, MissingExtraError, RankFailedError
from syncline.launch.failures import (
    RankFailure,
    clear_failures,
    describe_exception,
    failure_error,
    first_failure,
    write_failure,
)
from syncline.launch.restarting import with_restarts


def caught(error):
    try:
        raise error
    except BaseException as raised:
        return describe_exception(raised, rank=3, restart=1)


def write(logs, rank, restart, time_s):
    failure = RankFailure(rank=rank, restart=restart, time_s=time_s, classes=("ValueError",))
    write_failure(failure, logs)
    return failure


def test_the_earliest_failure_of_the_latest_start_is_the_cause(tmp_path):
    assert first_failure(tmp_path) is None
    old = write(tmp_path, rank=0, restart=0, time_s=1.0)
    write(tmp_path, rank=1, restart=1, time_s=5.0)
    first = write(tmp_path, rank=2, restart=1, time_s=4.0)
    assert first_failure(tmp_path) == first
    assert first_failure(tmp_path, 0) == old
    assert first_failure(tmp_path, 2) is None


def test_unfinished_and_foreign_files_are_no_failures(tmp_path):
    (tmp_path / "rank-0.error.json").write_text("{")
    (tmp_path / "rank-1.error.json").write_text('{"rank": 1, "classes": []}')
    assert first_failure(tmp_path) is None
    clear_failures(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error", [DataError("no such corpus"), MissingExtraError("plotly", "report", "The report")]
)
def test_errors_of_the_user_keep_class_and_message(tmp_path, error):
    write_failure(caught(error), tmp_path)
    failure = first_failure(tmp_path)
    assert failure is not None
    again = failure_error(failure, tmp_path)
    assert (type(again), str(again)) == (type(error), str(error))


def test_an_unknown_subclass_becomes_the_class_that_is_known(tmp_path):
    failure = RankFailure(rank=0, restart=0, time_s=0.0, classes=("Own", "DataError"), message="x")
    assert type(failure_error(failure, tmp_path)) is DataError


def test_other_errors_show_their_traceback(tmp_path):
    error = failure_error(caught(KeyError("width")), tmp_path)
    assert isinstance(error, RankFailedError)
    assert "Rank 3 raised KeyError: 'width'" in str(error)
    assert "in caught" in str(error)


@pytest.mark.parametrize(("code", "exit_code"), [(5, 5), ("no", 1)])
def test_exits_keep_their_code(code, exit_code):
    assert caught(SystemExit(code)).exit_code == exit_code


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (-signal.SIGKILL, "Rank 0 was killed by SIGKILL: perhaps out of memory."),
        (-signal.SIGSEGV, "Rank 0 was killed by SIGSEGV."),
        (-250, "Rank 0 was killed by signal 250."),
        (3, "Rank 0 ended with exit code 3."),
    ],
)
def test_silent_deaths_are_named(tmp_path, exit_code, text):
    failure = RankFailure(rank=0, restart=0, time_s=0.0, exit_code=exit_code)
    assert str(failure_error(failure, tmp_path)).startswith(text)


@pytest.mark.parametrize(("failures", "starts"), [(0, 1), (2, 3), (9, 4)])
def test_ranks_are_started_again_until_none_fails(failures, starts):
    seen = []

    def start(restart):
        seen.append(restart)
        if len(seen) <= failures:
            raise RankFailedError(f"attempt {restart}", rank=0, exit_code=1)

    if failures < starts:
        with_restarts(start, 3)
    else:
        with pytest.raises(RankFailedError, match="attempt 3"):
            with_restarts(start, 3)
    assert seen == list(range(starts))


def test_errors_of_the_user_are_not_tried_again():
    seen = []

    def start(restart):
        seen.append(restart)
        raise ConfigError("it stays wrong")

    with pytest.raises(ConfigError):
        with_restarts(start, 3)
    assert seen == [0]
