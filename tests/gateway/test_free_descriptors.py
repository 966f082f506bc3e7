"""A gateway without a free descriptor says so, once a minute."""

import os
import resource
from collections.abc import Iterator

import pytest

from gateway.free_descriptors import FreeDescriptors


@pytest.fixture
def exhausted() -> Iterator[int]:
    """A process that has opened all files that it may open; returns how many these are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
    try:
        while True:
            taken.append(os.dup(taken[0]))
    except OSError:
        yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            os.close(one)


def test_a_line_a_minute_says_that_no_descriptor_is_free(
    exhausted: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients were closed without a line in the log."""
    times = [100.0, 101.0, 159.0, 160.0]
    free = FreeDescriptors(iter(times).__next__)
    for _ in range(4):
        free.check()
    lines = [one for one in caplog.records if one.message == "no file descriptor is free"]
    assert len(lines) == 2
    assert f"({exhausted})" in vars(lines[0])["hint"]


def test_nothing_is_said_while_files_can_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    FreeDescriptors().check()
    assert not caplog.records
