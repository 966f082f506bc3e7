"""Full collections look only at what is new, and garbage goes all the same."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway import garbage
from gateway.garbage import GarbageCollection


class Cycle:
    """Lives until the collector comes."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collection() -> Iterator[GarbageCollection]:
    one = GarbageCollection()
    one.open()
    yield one
    one.close()
    assert gc.get_freeze_count() == 0 and one._collected not in gc.callbacks
    gc.freeze()  # as it was before: see tests/conftest.py


def test_what_survives_a_full_collection_is_not_looked_at_again(
    collection: GarbageCollection,
) -> None:
    kept = [Cycle() for _ in range(1000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() >= before + len(kept)
    assert len(gc.get_objects(generation=2)) < 1000


@pytest.mark.slow
def test_garbage_among_the_frozen_goes_when_nothing_runs(
    collection: GarbageCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "_MIN_IDLE", 100)
    dying = Cycle()
    seen = weakref.ref(dying)
    kept = [Cycle() for _ in range(1000)]
    gc.collect()
    del dying
    gc.collect()
    assert seen() is not None, "it is frozen"
    collection.check(is_idle=False)
    assert seen() is not None, "somebody would notice"
    collection.check(is_idle=True)
    assert seen() is None and len(kept) == 1000
    shown = repr(collection)
    assert shown.endswith(" new=0>")
    collection.check(is_idle=True)
    assert repr(collection) == shown, "nothing new was frozen: nothing is done"


@pytest.mark.slow
def test_garbage_goes_also_where_something_always_runs(
    collection: GarbageCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection.collect()
    monkeypatch.setattr(garbage, "_MIN_BUSY", -gc.get_freeze_count() + 100)
    dying = [Cycle() for _ in range(1000)]
    seen = weakref.ref(dying[0])
    gc.collect()
    dying.clear()
    collection.check(is_idle=False)
    assert seen() is None


async def test_too_much_garbage_does_not_wait_for_a_quiet_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, is_enough = list[bool](), asyncio.Event()

    def check(_: GarbageCollection, *, is_idle: bool) -> None:
        looks.append(is_idle)
        if len(looks) == 130:
            is_enough.set()

    monkeypatch.setattr(garbage, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(GarbageCollection, "check", check)
    collecting = asyncio.create_task(garbage.collect_garbage(lambda: True))
    await is_enough.wait()
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    gc.freeze()  # as it was before
    assert [place for place, is_idle in enumerate(looks[:130], 1) if is_idle] == [60, 120]
