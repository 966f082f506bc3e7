"""llama.cpp's n-gram caches: the algorithm, the file, and what a worker does with them."""

import errno
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from tests.worker.engines import Rig
from worker.drafting import open_drafter
from worker.engine.fake.backend import FakeBackend
from worker.engine.speculation.draft import DraftRequest
from worker.engine.speculation.ngram_cache import Cache, CacheLookup, add, draft, merge
from worker.speculation.lookup_file import (
    SavedLookup,
    add_to_cache,
    pack,
    read_cache,
    unpack,
    write_cache,
)

TOKENS = st.lists(st.integers(0, 3), max_size=40)


def cache_of(tokens: list[int]) -> Cache:
    cache: Cache = {}
    add(cache, tokens, len(tokens))
    return cache


@given(tokens=TOKENS, cut=st.integers(0, 40))
def test_a_text_counted_in_parts_is_counted_the_same(tokens: list[int], cut: int) -> None:
    cut = min(cut, len(tokens))
    cache = cache_of(tokens[:cut])
    add(cache, tokens, len(tokens) - cut)
    assert cache == cache_of(tokens)


@given(first=TOKENS, second=TOKENS)
def test_merging_adds_the_counts(first: list[int], second: list[int]) -> None:
    both = cache_of(first)
    merge(both, cache_of(second))
    for ngram, followers in both.items():
        for token, n in followers.items():
            counts = [cache_of(one).get(ngram, {}).get(token, 0) for one in (first, second)]
            assert n == sum(counts)


def test_a_repeated_text_is_guessed_from_itself() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3]
    assert draft(text, 4, cache_of(text), {}, {}) == (4, 5, 6, 7)


def test_the_longest_words_decide_and_a_draft_ends_where_nobody_knows() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2]  # 1 2 was followed by 3 and by 4
    assert draft(text, 4, cache_of(text), {}, {}) == (4, 9, 1, 2)
    assert draft([5, 6], 4, cache_of([5, 6]), {}, {}) == ()


def test_the_dynamic_cache_is_asked_more_strictly() -> None:
    once = cache_of([1, 2, 3])
    assert draft([1, 2], 1, once, {}, {}) == ()  # bigrams must have been seen twice
    assert draft([9, 1, 2], 1, cache_of([9, 1, 2, 3]), {}, {}) == (3,)
    assert draft([9, 1, 2], 1, {}, cache_of([9, 1, 2, 3]), {}) == ()
    assert draft([9, 1, 2], 1, {}, cache_of([9, 1, 2, 3] * 2), {}) == (3,)


def test_the_corpus_settles_a_tie_and_guesses_alone() -> None:
    tie: Cache = {(9, 1, 2): {3: 1, 4: 1}}
    assert draft([9, 1, 2], 1, tie, {}, {(1, 2): {4: 5}}) == (4,)
    assert draft([9, 1, 2], 1, {}, {}, {(1, 2): {7: 3}}) == (7,)
    assert draft([9, 1, 2], 1, {}, {}, {(1, 2): {7: 1}}) == ()


@given(tokens=TOKENS)
def test_a_file_keeps_a_cache(tokens: list[int]) -> None:
    cache = cache_of(tokens)
    assert unpack(pack(cache), 4) == cache


def test_a_count_stays_what_a_file_can_hold() -> None:
    """A file that said the most already ended the worker that added to it with a traceback."""
    most = (1 << 31) - 1
    assert unpack(pack({(5,): {7: most + 9}}), 9) == {(5,): {7: most}}


def test_the_file_is_that_of_llama_cpp() -> None:
    data = pack({(5, 6): {7: 2}})
    assert data == struct.pack("<4i i 2i", 5, 6, -1, -1, 1, 7, 2)


@given(data=st.binary(max_size=64))
def test_bytes_that_are_no_cache_are_refused_or_read(data: bytes) -> None:
    try:
        unpack(data, 100)
    except ValueError:
        return
    assert len(data) % 4 == 0


@pytest.mark.parametrize(
    "data",
    [b"x", pack({(1,): {2: 1}})[:-1], pack({(1,): {300: 1}}), pack({(1,): {2: -1}})],
)
def test_a_broken_file_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"cache\.bin"):
        read_cache(str(path), 256)


def test_a_cache_that_memory_cannot_hold_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(b"never read")
    monkeypatch.setattr("worker.speculation.lookup_file.usable_memory", lambda: 100)
    with pytest.raises(ConfigError, match=r"cache\.bin may need .* GiB of memory"):
        read_cache(str(path), 256)


def test_a_cache_that_is_not_there_begins_empty_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = str(tmp_path / "none")
    assert read_cache(missing, 256) == {}
    assert f"lookup cache does not exist file={missing}" in caplog.text


def test_a_dynamic_cache_is_made_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = WorkerConfig(backend="fake", lookup_cache_dynamic=str(tmp_path / "new.bin"))
    drafter = open_drafter(config, FakeBackend(config))
    assert drafter is not None
    rig = Rig(drafter=drafter)
    rig.submit("tell me more", n_predict=40)
    rig.finish()
    drafter.close()
    assert (tmp_path / "new.bin").exists() and caplog.text == ""


def test_what_one_worker_learnt_the_next_one_guesses(tmp_path: Path) -> None:
    path = str(tmp_path / "dynamic.bin")
    config = WorkerConfig(backend="fake", lookup_cache_dynamic=path)
    accepted = []
    for _ in range(3):
        drafter = open_drafter(config, FakeBackend(config))
        assert drafter is not None
        rig = Rig(drafter=drafter)
        task = rig.submit("tell me more", n_predict=40)
        rig.finish()
        drafter.close()
        accepted.append(rig.done(task).timings.draft_n_accepted)
    assert accepted[2] > accepted[0]
    assert [one.name for one in tmp_path.iterdir()] == ["dynamic.bin"]


def learn(drafter: SavedLookup, text: str) -> None:
    drafter.draft([DraftRequest(0, list(text.encode()), 4)])
    drafter.learn(0, list(text.encode()))


def open_saved(path: Path) -> SavedLookup:
    dynamic = read_cache(str(path), 256)
    return SavedLookup(CacheLookup({}, dynamic, 4), str(path), 256)


def test_workers_that_share_a_file_add_to_it(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    write_cache(str(path), cache_of(list(b"first")))
    one, other = open_saved(path), open_saved(path)
    learn(one, "second")
    learn(other, "third")
    one.close()
    other.close()
    expected: Cache = {}
    for text in (b"first", b"second", b"third"):
        merge(expected, cache_of(list(text)))
    assert read_cache(str(path), 256) == expected
    assert [file.name for file in tmp_path.iterdir()] == ["dynamic.bin"]


def test_workers_that_end_at_once_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    with ThreadPoolExecutor(8) as threads:
        for _ in range(32):
            threads.submit(add_to_cache, str(path), {(1,): {2: 1}}, 256)
    assert read_cache(str(path), 256) == {(1,): {2: 32}}


def test_a_file_that_was_broken_meanwhile_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dynamic.bin"
    drafter = open_saved(path)
    learn(drafter, "text")
    path.write_bytes(b"x")
    drafter.close()
    assert path.read_bytes() == b"x"
    assert "lookup cache not written" in caplog.text


def test_a_full_disk_leaves_no_part_of_a_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_cache(str(tmp_path / "dynamic.bin"), cache_of([1, 2, 3]))
    assert list(tmp_path.iterdir()) == []


def test_a_static_cache_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "static.bin"
    write_cache(str(path), cache_of([1, 2, 3, 1, 2, 3]))
    before = path.read_bytes()
    config = WorkerConfig(backend="fake", lookup_cache_static=str(path))
    drafter = open_drafter(config, FakeBackend(config))
    assert drafter is not None
    rig = Rig(drafter=drafter)
    rig.submit("tell me more", n_predict=20)
    rig.finish()
    drafter.close()
    assert path.read_bytes() == before


def test_a_slot_that_takes_another_text_starts_counting_anew() -> None:
    lookup = CacheLookup({}, {}, 4)
    rig = Rig(n_slots=1, drafter=lookup)
    for prompt in ("abcabcabc", "xyzxyzxyz", "abcabcabc"):
        rig.submit(prompt, n_predict=10)
        rig.finish()
    assert lookup.n_learnt == 3


def test_a_static_cache_is_what_a_worker_guesses_from(tmp_path: Path) -> None:
    path = tmp_path / "static.bin"
    write_cache(str(path), cache_of([1, 2, 3] * 4))
    config = WorkerConfig(backend="fake", lookup_cache_static=str(path), n_draft=4)
    drafter = open_drafter(config, FakeBackend(config))
    assert drafter is not None
    assert drafter.draft([DraftRequest(0, [9, 1, 2], 4)])[0][:1] == [3]
    without = CacheLookup({}, {}, 4)
    assert without.draft([DraftRequest(0, [9, 1, 2], 4)]) == [[]]
