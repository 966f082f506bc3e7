"""What stays of a prompt, who may use it, and what goes first."""

import time

import pytest

from tests.worker.engines import Rig, blocks_of, said
from worker.engine.cache.cache import MIN_KEPT
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.cache.host_cache import MAX_CHAINS, MIN_TOKENS, HostCache
from worker.engine.cache.sequences import n_sequences
from worker.engine.scheduling.budget import StepBudget
from worker.engine.sequence_state import State
from worker.engine.slot import BlockChain

ANNA = "Anna has a red kite that she flies over the hill behind her house every day. "
BERT = "Bert drives a bus through the city, and knows each of the people on it. "


def lost(rig: Rig, *texts: str) -> list[str]:
    """Which of these texts gateways do not take for cached, by what they were told."""
    held = said(rig)
    return [text for text in texts if not blocks_of(text) <= held]


def ask(rig: Rig, prompt: str, **settings: object) -> int:
    """Run one task to its end; return how many tokens of its prompt were in the cache."""
    task = rig.submit(prompt, **settings)  # type: ignore[arg-type]
    rig.finish()
    return rig.done(task).n_cached


def test_a_conversation_finds_its_history_although_another_took_the_slot() -> None:
    rig = Rig(n_slots=1, n_ctx=512)
    ask(rig, ANNA)
    assert ask(rig, BERT) == 1
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert ask(rig, BERT + "And then?") == len(BERT) + 1
    assert rig.engine.heartbeat().stats.n_branches == 2


def test_turns_of_many_conversations_read_only_what_is_new() -> None:
    rig = Rig(n_slots=2, n_cells=4096, n_branches=8)
    said = {i: f"Conversation {i}. " + ANNA for i in range(6)}
    n_new = 0
    for turn in range(5):
        for i, text in said.items():
            task = rig.submit(text)
            rig.finish()
            if turn:
                n_new += rig.done(task).timings.prompt_n
            said[i] = text + rig.text(task) + f"Question {turn}? "
    # The last token of an answer was never computed: it is new, like the question.
    assert n_new == 4 * 6 * (len("Question 0? ") + 1)


def test_tenants_do_not_see_each_others_prompts() -> None:
    rig = Rig(n_slots=2, n_ctx=512, host_bytes=100_000)
    ask(rig, ANNA, salt="one")
    assert ask(rig, ANNA, salt="two") == 0
    assert ask(rig, ANNA) == 0
    assert ask(rig, ANNA, salt="one") == len(ANNA)


def test_tenants_do_not_wait_for_each_others_prompts() -> None:
    rig = Rig(n_slots=2, n_batch=32)
    tasks = [rig.submit(ANNA, salt=salt) for salt in ("one", "two")]
    rig.finish()
    assert [rig.done(task).n_cached for task in tasks] == [0, 0]


def test_idle_texts_move_to_the_hosts_memory_when_another_task_begins() -> None:
    rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
    for text in (ANNA, BERT, "z" * 100):
        ask(rig, text)
    assert rig.engine.cache.n_cells <= len("z" * 100) + 20
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert lost(rig, ANNA, BERT) == []


def test_what_a_task_has_a_use_for_stays_where_it_is() -> None:
    rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
    ask(rig, ANNA + "One.", slot=0)
    assert ask(rig, ANNA + "Two.", slot=1) == len(ANNA) + 1
    assert rig.engine.cache.n_host_bytes == 0


def test_of_idle_texts_that_begin_alike_none_stays() -> None:
    """A task takes the template or system prompt that all share; the rest would slow it down."""
    rig = Rig(n_slots=2, n_ctx=2048, host_bytes=1_000_000)
    texts = [ANNA + letter * 80 for letter in "abcdef"]
    for text in texts:
        ask(rig, text)
    one = len(ANNA) + 80 + 20
    assert rig.engine.cache.n_cells <= one
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert lost(rig, *texts) == []
    assert ask(rig, texts[0] + "And then?") == len(texts[0]) + 1, "fetched from the host's memory"


@pytest.mark.parametrize("settings", [{"host_bytes": 0}, {"host_bytes": 1}])
def test_idle_texts_stay_where_the_host_has_no_room(settings: dict[str, int]) -> None:
    rig = Rig(n_slots=2, n_ctx=1024, **{"host_bytes": 100_000} | settings)  # type: ignore[arg-type]
    for text in (ANNA, BERT, "z" * 100):
        ask(rig, text)
    assert rig.engine.cache.n_cells > len(ANNA + BERT) + 100
    assert (rig.engine.cache.n_host_bytes, lost(rig, ANNA, BERT)) == (0, [])


def test_copies_before_a_batch_are_no_cost_of_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_s = 0.2
    learnt: list[float] = []
    rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
    for text in (ANNA, BERT):
        ask(rig, text)
    states, put = rig.backend.states, rig.backend.states.put_part

    def slow_put(seq: int, state: State, start: int, end: int) -> bool:
        time.sleep(copy_s)
        return put(seq, state, start, end)

    monkeypatch.setattr(StepBudget, "observe", lambda self, d, p, s: learnt.append(s))
    monkeypatch.setattr(states, "put_part", slow_put)
    ask(rig, BERT + "x" * 80, slot=0)
    ask(rig, ANNA + "And then?")
    assert rig.engine.counters.n_restored
    assert learnt and max(learnt) < copy_s
    assert rig.engine.counters.step_s >= copy_s, "the step took as long as it took"


def test_a_slot_that_is_emptied_is_told_to_the_gateway() -> None:
    rig = Rig(n_slots=1, n_ctx=512)
    ask(rig, ANNA)
    assert lost(rig, ANNA) == []
    assert rig.engine.cache.empty(rig.engine.slots[0]) == len(ANNA) + 8
    ask(rig, BERT)
    assert lost(rig, ANNA, BERT) == [ANNA]


def test_who_wants_no_cache_leaves_none() -> None:
    rig = Rig(n_slots=1, n_ctx=512)
    ask(rig, ANNA, cache_prompt=False)
    ask(rig, BERT, cache_prompt=False)
    assert ask(rig, ANNA) == 1


def test_the_least_recently_used_goes_first_and_the_gateway_hears_of_it() -> None:
    rig = Rig(n_slots=1, n_cells=300, n_branches=8)
    texts = [f"Number {i} " + "x" * 70 for i in range(3)]
    for text in texts:
        ask(rig, text)
    assert lost(rig, *texts) == []
    ask(rig, texts[0] + " again")
    ask(rig, "Number 9 " + "y" * 90)
    assert lost(rig, *texts) == [texts[1]], "the first was used again"
    assert rig.engine.heartbeat().stats.n_evicted == 1


def test_without_a_number_left_the_oldest_branch_goes() -> None:
    rig = Rig(n_slots=1, n_ctx=2048, n_branches=1)
    ask(rig, ANNA)
    ask(rig, BERT)
    ask(rig, "z" * MIN_KEPT)
    assert lost(rig, ANNA, BERT, "z" * MIN_KEPT) == [ANNA]


def test_what_left_the_context_comes_back_from_the_hosts_memory() -> None:
    rig = Rig(n_slots=1, n_cells=200, n_branches=8, host_bytes=100_000)
    ask(rig, ANNA)
    alone = rig.text(1)
    ask(rig, BERT + "x" * 80)
    assert lost(rig, ANNA) == [], "it is not gone"
    assert ask(rig, ANNA) == len(ANNA)
    assert rig.text(3) == alone
    n_there = 1  # the mark of the beginning
    assert rig.engine.heartbeat().stats.n_restored == len(ANNA) - n_there


def test_a_short_text_comes_back_from_the_hosts_memory_too() -> None:
    rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
    text = "y" * (MIN_TOKENS - 1)
    ask(rig, text)
    ask(rig, BERT, slot=1)
    assert rig.engine.cache.n_host_bytes
    assert ask(rig, text) == len(text)


def test_the_hosts_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    host = HostCache(1000)
    texts = [[i] * 100 for i in range(4)]
    for text in texts[:2]:
        assert host.put("space", text, [bytes(400)])
    assert host.find("space", texts[0], 99)
    assert host.put("space", texts[2], [bytes(400)])
    assert host.n_bytes == 800
    assert host.find("space", texts[1], 99) is None
    assert not host.put("space", texts[3], [bytes(1001)])
    assert host.find("other", texts[0], 99) is None


def test_what_the_hosts_memory_forgets_is_told_with_all_prompts_that_it_began_with() -> None:
    held = CachedBlocks()
    host = HostCache(250, held)

    def put(number: int, n: int, size: int, name: str) -> bool:
        return host.put("", [number] * n, [bytes(size)], BlockChain(name.encode() * 8, n))

    put(1, 80, 80, "4")
    put(1, 120, 120, "5")
    put(1, 100, 1, "7")
    assert put(2, 100, 100, "8")
    assert len(held) == 4
    held.take()
    assert put(3, 100, 100, "9")
    removed = [run[8:] for message in held.take() for run in message.removed]
    assert sorted(removed) == [b"4" * 8, b"5" * 8, b"7" * 8]


def test_a_text_is_known_by_the_newest_of_the_prompts_that_became_it() -> None:
    held = CachedBlocks()
    host = HostCache(-1, held)
    for number in range(MAX_CHAINS + 3):
        host.put("", [1] * 80, [bytes(80)], BlockChain(bytes([number]) * 16, 80))
    host.put("", [1] * 80, [bytes(80)], BlockChain(bytes([number]) * 8, 80))
    assert len(held) == MAX_CHAINS
    ((message,),) = (held.everything(),)
    assert {run[-1] for run in message.added} == {3, 4, 5, 6}


def test_the_gateway_hears_of_texts_that_made_way_in_the_hosts_memory() -> None:
    rig = Rig(n_slots=1, n_cells=200, n_branches=8, host_bytes=1000)
    texts = [letter * 150 for letter in "abcd"]
    for number, text in enumerate(texts, 1):
        ask(rig, text)
        assert lost(rig, *texts[:number]) == texts[: max(0, number - 2)]


def test_a_longer_copy_takes_the_place_of_its_beginning() -> None:
    host = HostCache(-1)
    host.put("", [1] * 80, [bytes(80)])
    host.put("", [1] * 120, [bytes(120)])
    assert (len(host), host.n_bytes) == (1, 120)
    assert host.put("", [1] * 100, [bytes(1)]), "it is there already"
    assert (len(host), host.n_bytes) == (1, 120)


def test_a_copy_takes_the_place_of_one_that_ends_in_few_other_tokens() -> None:
    """A template closes an answer with other tokens than those after which the model stopped."""
    held = CachedBlocks()
    host = HostCache(-1, held)
    host.put("", [1] * 80 + [2] * 4, [b"first"], BlockChain(b"a" * 8 + b"b" * 8, 84))
    host.put("", [1] * 80 + [3] * 40, [b"second"], BlockChain(b"c" * 8, 120))
    assert len(host) == 1
    found = host.find("", [1] * 80 + [2] * 4, 84)
    assert found is not None and (found.n, found.pieces) == (80, [b"second"])
    removed = [run[-8:] for message in held.take() for run in message.removed]
    assert b"a" * 8 not in removed, "the new copy begins with that block, too"
    host.put("", [1] * 80 + [4] * MIN_TOKENS, [b"third"])
    host.put("", [1] * 80 + [5] * MIN_TOKENS, [b"fourth"])
    assert len(host) == 2, "what takes long to read again stays"


def test_memory_that_cannot_be_cut_takes_only_whole_copies() -> None:
    host = HostCache(-1, is_whole=True, can_cut=False)
    host.put("", [1] * 80, [b"short"])
    host.put("", [1] * 80 + [2] * 20, [b"longer"])
    assert host.find("", [1] * 80 + [3], 80) is None
    found = host.find("", [1] * 80 + [2] * 30, 109)
    assert found is not None and (found.n, found.pieces) == (100, [b"longer"])


def test_a_task_that_does_not_fit_waits_and_one_that_must_give_way_goes_on_later() -> None:
    alone = Rig(n_slots=1, n_ctx=1024)
    expected = [alone.submit(ANNA + end, n_predict=900) for end in "ab"]
    alone.finish()
    rig = Rig(n_slots=2, n_cells=800)
    tasks = [rig.submit(ANNA + end, n_predict=-1) for end in "ab"]
    while rig.engine.counters.n_preempted == 0:
        rig.turn()
    rig.finish()
    for task, other in zip(tasks, expected, strict=True):
        assert alone.text(other).startswith(rig.text(task))
        assert rig.terminals(task) == 1


def test_a_task_waits_until_its_answer_fits_too() -> None:
    rig = Rig(n_slots=2, n_cells=200)
    first = rig.submit(ANNA, n_predict=60)
    second = rig.submit(BERT, n_predict=60)
    rig.turn()
    assert (rig.engine.n_busy, rig.engine.n_waiting) == (1, 1)
    rig.finish()
    assert [rig.done(task).n_predicted for task in (first, second)] == [60, 60]
    assert rig.engine.counters.n_preempted == 0


def test_any_slot_may_use_the_whole_context() -> None:
    rig = Rig(n_slots=4, n_cells=400)
    assert ask(rig, "w" * 350) == 0
    assert rig.done(1).n_predicted == 8


def test_there_are_never_more_sequences_than_llama_cpp_has() -> None:
    assert n_sequences(8, 32) == 40
    assert n_sequences(250, 32) == 256


def test_a_prompt_that_is_read_twice_counts_as_cached_what_it_found_last() -> None:
    rig = Rig(n_slots=2, n_cells=400, n_batch=16)
    rig.submit(ANNA, n_predict=60)
    rig.finish()
    task = rig.submit(ANNA + BERT)
    while not rig.of(task):
        rig.turn()
    (slot,) = (slot for slot in rig.engine.slots if slot.run is not None)
    rig.engine._step._preemption.preempt(slot)
    rig.finish()
    assert rig.done(task).n_cached <= len(ANNA) + 1
    assert rig.done(task).timings.prompt_n == len(ANNA + BERT) + 1 - rig.done(task).n_cached
