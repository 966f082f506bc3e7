"""The index of prefixes: bounded, forgets on demand, and matches only what was added."""

import random
import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.routing.prefix_index import PrefixIndex, SessionMap, SessionPlacement

MAX_BYTES = 3000


def chain(text: str) -> tuple[int, ...]:
    """Blocks of one letter each."""
    return tuple(hash(text[: i + 1]) for i in range(len(text)))


def index(*texts: str) -> PrefixIndex:
    one = PrefixIndex(MAX_BYTES)
    for task_id, text in enumerate(texts):
        one.add(task_id, chain(text))
    return one


def cost_of(text: str) -> int:
    return index(text).n_bytes


def known(one: PrefixIndex, text: str) -> str:
    return text[: one.match(chain(text))]


def test_the_longest_known_beginning_is_found() -> None:
    one = index("abcd", "abx")
    assert [known(one, text) for text in ("abcde", "abxy", "abz", "q", "")] == [
        *("abcd", "abx", "ab", "", "")
    ]


def test_what_another_task_shares_stays_when_one_is_forgotten() -> None:
    one = index("abcd", "abx")
    one.forget(0)
    assert known(one, "abcd") == "ab"
    one.forget(1)
    assert repr(one) == "<PrefixIndex blocks=0 tasks=0>"


def test_a_task_that_was_cut_short_leaves_less() -> None:
    one = index("abcd")
    one.shorten(0, chain("ab"))
    one.shorten(7, chain("zz"))
    assert known(one, "abcd") == "ab"
    assert known(one, "zz") == ""
    one.shorten(0, ())
    assert repr(one) == "<PrefixIndex blocks=0 tasks=0>"


def test_the_oldest_task_goes_first() -> None:
    one = PrefixIndex(2 * cost_of("aaaa"))
    one.add(1, chain("aaaa"))
    one.add(2, chain("bbbb"))
    one.add(3, chain("cccc"))
    assert [known(one, text) for text in ("aaaa", "bbbb", "cccc")] == ["", "bbbb", "cccc"]


def test_a_beginning_that_many_go_on_from_is_told_from_a_conversation() -> None:
    one = index("sysa", "sysb", "sysc", "sysab", "sysabc")
    assert one.shared_prefix(chain("sysabc"), 6) == (3, 3)
    assert one.shared_prefix(chain("sysabc"), 2) == (0, 1)
    assert one.shared_prefix(chain("x"), 0) == (0, 1)


def test_repetitions_of_one_prompt_are_no_branches() -> None:
    assert index("abc", "abc", "abc", "abcd").shared_prefix(chain("abcd"), 4) == (0, 1)


WORDS = st.text("abc", max_size=6)
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "forget", "shorten")), st.integers(0, 9), WORDS), max_size=60
)


@given(steps=STEPS, probe=WORDS)
def test_the_index_is_what_its_tasks_leave_and_never_over_its_bound(
    steps: Sequence[tuple[str, int, str]], probe: str
) -> None:
    one = PrefixIndex(MAX_BYTES)
    added: dict[int, str] = {}
    for what, task_id, word in steps:
        match what:
            case "add":
                one.add(task_id, chain(word))
                added[task_id] = word
            case "forget":
                one.forget(task_id)
                added.pop(task_id, None)
            case "shorten":
                kept = added.get(task_id, "")[: len(word)]
                one.shorten(task_id, chain(kept))
                added[task_id] = kept
        assert one.n_bytes <= MAX_BYTES
    n_known = one.match(chain(probe))
    # Halving finds what counting finds, and nothing is known that no task has left.
    assert n_known == sum(one.match(chain(probe[: i + 1])) == i + 1 for i in range(len(probe)))
    assert not n_known or any(word.startswith(probe[:n_known]) for word in added.values())
    for task_id in added:
        one.forget(task_id)
    assert repr(one) == "<PrefixIndex blocks=0 tasks=0>"


def test_the_bound_is_one_of_memory() -> None:
    draw = random.Random(1)
    chains = [tuple(draw.getrandbits(62) for _ in range(n)) for n in (1, 40) for _ in range(400)]
    for part in (chains[:400], chains[400:]):
        one = PrefixIndex(10**7)
        tracemalloc.start()
        for task_id, blocks in enumerate(part):
            one.add(task_id, blocks)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        numbers = 36 * sum(map(len, part))  # which belonged to the task before
        assert used + numbers <= one.n_bytes


def test_sessions_are_bounded_and_forgotten_with_their_worker() -> None:
    one = SessionMap(2)
    for session, worker in ((1, "a"), (2, "b"), (3, "a")):
        one.move(session, SessionPlacement(worker, 5))
    one.move(0, SessionPlacement("a", 5))
    assert [one.find(i) for i in range(4)] == [
        None,
        None,
        SessionPlacement("b", 5),
        SessionPlacement("a", 5),
    ]
    one.lost("a")
    assert repr(one) == "<SessionMap 1>"
