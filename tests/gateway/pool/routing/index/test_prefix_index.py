"""The index of prefixes: what workers say, in bounded memory, compared with a naive one."""

import random
import tracemalloc
from array import array
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.pool.routing.index.block_table import BlockTable
from gateway.pool.routing.index.prefix_index import PrefixIndex
from gateway.pool.routing.sessions import SessionMap, SessionPlacement
from protocol.wire.cached import BLOCK_BYTES, MAX_SAID_BLOCKS, Cached
from tests.counted import lines_of
from tests.examples import examples
from tests.gateway.chains import Speaker, chain

START = bytes(BLOCK_BYTES)


class Known:
    """An index with workers that say what they hold."""

    def __init__(self, *workers: str) -> None:
        self.index = PrefixIndex()
        self.bits = {name: self.index.open(name) for name in workers}
        self.held = {name: self.speaker(name) for name in workers}

    def speaker(self, name: str) -> Speaker:
        def say(message: Cached) -> None:
            self.index.remove(name, message.removed)
            self.index.add(name, message.added)

        return Speaker(say)

    def hold(self, worker: str, *texts: str) -> None:
        for text in texts:
            self.held[worker].hold(hash(text), chain(text))

    def of(self, text: str) -> dict[str, int]:
        """How many blocks of a text each worker holds."""
        holders = self.index.holders(chain(text))
        return {name: holders.depth(bit) for name, bit in self.bits.items()}


def test_one_lookup_tells_how_much_each_worker_holds() -> None:
    known = Known("a", "b", "c", "d")
    known.hold("a", "abcd")
    known.hold("b", "abx", "q")
    known.hold("c", "abcdef")
    assert known.of("abcdeg") == {"a": 4, "b": 2, "c": 5, "d": 0}
    assert [n for n, _ in known.index.holders(chain("abcdeg")).levels] == [5, 4, 2]
    assert known.of("z") == known.of("") == {"a": 0, "b": 0, "c": 0, "d": 0}


def test_the_few_with_the_most_are_enough() -> None:
    known = Known("a", "b", "c")
    for name, text in (("a", "abcd"), ("b", "abc"), ("c", "a")):
        known.hold(name, text)
    assert known.index.holders(chain("abcde"), n_max=2).levels == (
        (4, known.bits["a"]),
        (3, known.bits["b"]),
    )
    assert known.index.holders(chain("abcde"), among=known.bits["c"]).levels == (
        (1, known.bits["c"]),
    )


def test_what_another_prompt_shares_stays_when_one_is_gone() -> None:
    known = Known("a")
    known.hold("a", "abcd", "abx")
    known.held["a"].hold(hash("abcd"), b"")
    assert known.of("abcd") == {"a": 2}
    known.held["a"].hold(hash("abx"), b"")
    assert known.index.n_blocks == known.index.n_held("a") == 0


def test_a_worker_that_is_lost_leaves_nothing_and_its_place_is_free() -> None:
    known = Known("a", "b")
    known.hold("a", "abcd", "q")
    known.hold("b", "ab")
    known.index.lost("a")
    assert known.of("abcd") == {"a": 0, "b": 2}
    assert known.index.n_blocks == 2
    known.bits["c"] = known.index.open("c")
    assert known.bits["c"] == known.bits["a"]
    assert known.of("abcd") == {"a": 0, "b": 2, "c": 0}


@pytest.mark.slow
def test_the_blocks_of_a_lost_worker_go_little_by_little() -> None:
    known = Known("a", "b")
    draw = random.Random(3)
    for name in ("a", "b"):
        for _ in range(60):
            known.index.add(name, [START + draw.randbytes(BLOCK_BYTES * MAX_SAID_BLOCKS)])
    known.index.lost("a")
    assert known.index.n_blocks > 60 * MAX_SAID_BLOCKS, "not all at once"
    taken = chain("new")
    known.index.add("b", [START + taken])
    for _ in range(10):
        known.index.prune()
    assert known.index.n_blocks == known.index.n_held("b") == 60 * MAX_SAID_BLOCKS + 3


def test_a_beginning_that_many_go_on_from_is_told_from_a_conversation() -> None:
    known = Known("a", "b")
    known.hold("a", "sysa", "sysb", "sysab", "sysabc")
    assert known.index.holders(chain("sysabc")).shared == (0, 1)
    known.hold("b", "sysc")
    assert known.index.holders(chain("sysabc")).shared == (3, 3)
    assert known.index.holders(chain("sy")).shared == (0, 1)
    known.held["b"].hold(hash("sysc"), b"")
    assert known.index.holders(chain("sysabc")).shared == (0, 1)


def test_the_branches_of_a_worker_that_comes_and_goes_are_counted_once() -> None:
    known = Known("a", "b")
    known.hold("a", "talk")
    for _ in range(5):
        known.hold("b", "talks")
        known.index.lost("b")
        known.index.open("b")
        known.held["b"] = known.speaker("b")
    assert known.index.holders(chain("talks")).shared == (0, 1)


def test_what_was_assigned_is_expected_until_it_has_started() -> None:
    known = Known("a", "b")
    known.hold("a", "ab")
    known.index.expect("a", 1, chain("abcd"))
    known.index.expect("a", 2, chain("abcdef"))
    known.index.expect("b", 3, chain("abx"))
    assert known.of("abcdef") == {"a": 6, "b": 2}
    known.index.forget_expected(2)
    assert known.of("abcdef") == {"a": 4, "b": 2}
    known.index.expect("b", 1, chain("abcd"))  # it was given to another worker
    assert known.of("abcdef") == {"a": 2, "b": 4}
    known.index.lost("b")
    known.index.forget_expected(1)
    assert known.of("abcdef") == {"a": 2, "b": 0}


def test_blocks_that_several_tasks_have_are_expected_until_the_last_has_started() -> None:
    known = Known("a", "b")
    for task_id, text in ((1, "abcd"), (2, "abx"), (3, "ab")):
        known.index.expect("a", task_id, chain(text))
    known.index.expect("b", 4, chain("ab"))
    known.index.forget_expected(2)
    known.index.forget_expected(1)
    assert known.of("abcd") == known.of("abx") == {"a": 2, "b": 2}
    known.index.forget_expected(3)
    assert known.of("abcd") == {"a": 0, "b": 2}
    known.index.forget_expected(4)
    assert known.of("abcd") == {"a": 0, "b": 0}


def test_a_start_looks_at_the_blocks_of_its_own_prompt_alone() -> None:
    def start_of_one(n_others: int) -> int:
        known = Known("a")
        for task_id in range(1 + n_others):
            known.index.expect("a", task_id, chain(chr(0x100 + task_id) + "x" * 50))
        return lines_of(lambda: known.index.forget_expected(0))

    assert start_of_one(64) == start_of_one(1)


# ---- compared with a naive index --------------------------------------------------------------

WORDS = st.text("ab", max_size=6)


class IndexMachine(RuleBasedStateMachine):
    """Workers come, go, hold, expect and forget; a set for each of them says what must come out."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Known()
        self.texts: dict[str, dict[int, str]] = {}
        self.expected: dict[int, tuple[str, str]] = {}

    @rule(name=st.sampled_from("abcd"))
    def come(self, name: str) -> None:
        if name not in self.texts:
            self.known.bits[name] = self.known.index.open(name)
            self.known.held[name] = self.known.speaker(name)
            self.texts[name] = {}

    @rule(name=st.sampled_from("abcd"), keeps=st.booleans())
    def go(self, name: str, keeps: bool) -> None:
        if name not in self.texts:
            return
        del self.known.held[name], self.texts[name]
        self.expected = {i: told for i, told in self.expected.items() if told[0] != name}
        if keeps:  # it sleeps
            self.known.index.clear(name)
            self.known.held[name], self.texts[name] = self.known.speaker(name), {}
        else:
            self.known.index.lost(name)
            del self.known.bits[name]

    @rule(name=st.sampled_from("abcd"), holder=st.integers(0, 5), word=WORDS)
    def hold(self, name: str, holder: int, word: str) -> None:
        if name in self.texts:
            self.known.held[name].hold(holder, chain(word))
            self.texts[name][holder] = word

    @rule(name=st.sampled_from("abcd"))
    def say_it_again(self, name: str) -> None:
        for message in self.known.held[name].announce() if name in self.texts else ():
            self.known.index.add(name, message.added)

    @rule(name=st.sampled_from("abcd"), task=st.integers(0, 5), word=WORDS)
    def expect(self, name: str, task: int, word: str) -> None:
        if name in self.texts:
            self.known.index.expect(name, task, chain(word))
            self.expected[task] = name, word

    @rule(task=st.integers(0, 5))
    def begin(self, task: int) -> None:
        self.known.index.forget_expected(task)
        self.expected.pop(task, None)

    @rule()
    def prune(self) -> None:
        self.known.index.prune()

    @rule(probe=st.text("ab", max_size=8))
    def lookup(self, probe: str) -> None:
        found = self.known.of(probe)
        for name, texts in self.texts.items():
            words = [*texts.values(), *(w for n, w in self.expected.values() if n == name)]
            best = max((common(word, probe) for word in texts.values()), default=0)
            most = max((common(word, probe) for word in words), default=0)
            # What is expected counts from where the worker held the prompt when it was assigned.
            assert best <= found[name] <= most
            if not self.expected:
                assert found[name] == best

    @invariant()
    def the_blocks_are_those_of_the_texts(self) -> None:
        own = {name: beginnings(texts.values()) for name, texts in self.texts.items()}
        index = self.known.index
        assert {name: index.n_held(name) for name in own} == {n: len(own[n]) for n in own}
        everything = set[str]().union(*own.values())
        assert index.n_blocks == len(everything)
        forks = {text for text in everything if {text + "a", text + "b"} <= everything}
        assert all(index._table.branches(name_of(fork)) == 2 for fork in forks)


def common(text: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), None) or (
        min(len(text), len(other)) if text[:1] == other[:1] else 0
    )


def beginnings(texts: Iterable[str]) -> set[str]:
    return {text[: i + 1] for text in texts for i in range(len(text))}


def name_of(text: str) -> int:
    return array("Q", chain(text)[-BLOCK_BYTES:])[0]


IndexMachine.TestCase.settings = examples(120, stateful_step_count=50)
TestIndex = IndexMachine.TestCase


@examples(50)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 3000))
def test_the_table_is_a_dictionary(seed: int, n: int) -> None:
    draw, table, model = random.Random(seed), BlockTable(), dict[int, int]()
    low = draw.random() < 0.3  # names that somebody has chosen, all beside one another
    for _ in range(n):
        name = draw.randrange(1, 900 if low else 2**64)
        if name in model and draw.random() < 0.5:
            table.remove(name)
            del model[name]
        elif name not in model:
            model[name] = draw.randrange(1, 1000)
            table.add(name, 0, model[name])
        elif model and draw.random() < 0.3:
            table.remove(gone := draw.choice(list(model)))
            del model[gone]
    assert len(table) == len(model)
    assert {name: table.set_of(name) for name in model} == model
    assert table.set_of(0) == table.set_of(2**64 - 1) == 0


# ---- memory -----------------------------------------------------------------------------------


def bytes_each(index: PrefixIndex, fill: Sequence[tuple[str, bytes]]) -> float:
    """Return the memory of an index for each block and worker that holds it."""
    tracemalloc.start()
    for worker, blocks in fill:
        for i in range(0, len(blocks), BLOCK_BYTES * MAX_SAID_BLOCKS):
            before = blocks[i - BLOCK_BYTES : i] if i else START
            index.add(worker, [before + blocks[i : i + BLOCK_BYTES * MAX_SAID_BLOCKS]])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / sum(index.n_held(name) for name in {name for name, _ in fill})


def opened(n: int) -> tuple[PrefixIndex, list[str]]:
    index, names = PrefixIndex(), [f"w{i}" for i in range(n)]
    for name in names:
        index.open(name)
    return index, names


@pytest.mark.slow
def test_a_block_that_nobody_shares_takes_few_bytes() -> None:
    for n_blocks in (1, 40):
        index, names = opened(8)
        draw = random.Random(1)
        fill = [
            (name, draw.randbytes(BLOCK_BYTES * n_blocks))
            for name in names
            for _ in range(1000 // n_blocks)
        ]
        assert bytes_each(index, fill) <= 30


@pytest.mark.slow
def test_conversations_under_shared_system_prompts_take_few_bytes() -> None:
    index, names = opened(16)
    draw = random.Random(2)
    systems = [draw.randbytes(BLOCK_BYTES * 40) for _ in range(10)]
    fill = []
    for name in names:
        for _ in range(30):
            talk = draw.choice(systems) + draw.randbytes(BLOCK_BYTES * draw.randrange(5, 60))
            fill.append((name, talk))
            if draw.random() < 0.2:  # it was moved to another worker
                fill.append((draw.choice(names), talk))
    assert bytes_each(index, fill) <= 30


@pytest.mark.slow
def test_what_a_worker_says_beyond_the_bound_is_not_noted() -> None:
    index, draw = PrefixIndex(), random.Random(1)
    n_most = index.max_blocks = 8 * MAX_SAID_BLOCKS
    for name in ("w0", "w1"):
        index.open(name)
    tracemalloc.start()
    for _ in range(3 * 8):
        index.add("w0", [draw.randbytes(BLOCK_BYTES * (MAX_SAID_BLOCKS + 1))])
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert index.n_held("w0") == n_most
    assert used < 30 * n_most
    index.add("w1", [START + chain("text")])
    assert index.holders(chain("text")).max_blocks == 4, "others are not affected"


def test_of_one_message_only_so_many_blocks_are_looked_at() -> None:
    index, _ = opened(1)
    runs = [random.Random(i).randbytes(BLOCK_BYTES * 700) for i in range(3)]
    index.add("w0", [b"", b"short", *runs])
    assert index.n_held("w0") == MAX_SAID_BLOCKS
    index.remove("w0", [b"", b"12345678", *runs, bytes(BLOCK_BYTES * 5)])
    assert index.n_held("w0") == index.n_blocks == 0


def test_who_removes_what_others_hold_harms_nobody() -> None:
    known = Known("a", "b")
    known.hold("a", "text")
    known.index.remove("b", [START + chain("text")])
    known.index.remove("nobody", [START + chain("text")])
    assert known.of("text") == {"a": 4, "b": 0}
    assert known.index.n_held("b") == 0


def test_sessions_are_bounded_and_forgotten_with_their_worker() -> None:
    sessions = SessionMap(2)
    for session, worker in ((1, "a"), (2, "b"), (3, "a")):
        sessions.move(session, SessionPlacement(worker, 5))
    sessions.move(0, SessionPlacement("a", 5))
    assert [sessions.find(i) for i in range(4)] == [
        None,
        None,
        SessionPlacement("b", 5),
        SessionPlacement("a", 5),
    ]
    sessions.lost("a")
    assert repr(sessions) == "<SessionMap 1>"
