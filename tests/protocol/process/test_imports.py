"""Modules are imported without collections, and never walked afterwards."""

import gc

import pytest

from protocol.process.imports import importing


def test_nothing_is_collected_within_and_what_there_is_stays_frozen() -> None:
    with importing():
        assert not gc.isenabled()
        made: list[list[object]] = [[] for _ in range(3)]
    assert gc.isenabled()
    assert all(one is not made for one in gc.get_objects())


def test_a_failed_import_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError("no such module")
    assert gc.isenabled()
