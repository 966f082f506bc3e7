"""What stays of a prompt, who may use it, and what goes first."""

import time

import pytest

from protocol.wire.messages import Evicted
from tests.worker.engines import Rig
from worker.engine.cache.cache import MIN_KEPT, n_sequences
from worker.engine.cache.eviction import MIN_IDLE
from worker.engine.cache.host_cache import MAX_TASKS, HostCache
from worker.engine.cache.states import State
from worker.engine.scheduling.scheduler import StepBudget

ANNA = "Anna has a red kite that she flies over the hill behind her house every day. "
BERT = "Bert drives a bus through the city, and knows each of the people on it. "


def lost(rig: Rig) -> list[int]:
    return [
        task for message in rig.emitted if isinstance(message, Evicted) for task in message.tasks
    ]


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


def test_an_idle_text_goes_when_it_has_cost_as_much_as_reading_it_again() -> None:
    rig = Rig(n_slots=1, n_ctx=1024)
    ask(rig, ANNA)
    ask(rig, "z" * 100)
    cache = rig.engine.cache
    cell_s, token_s = 1e-6, 2e-3
    rig.engine.rent.expire(0, cell_s, token_s)
    rig.engine.rent.expire(900, cell_s, token_s)
    assert cache.n_branches == 1, "900 rows and those of the second text cost 1 ms a token"
    rig.engine.rent.expire(1100, 0.0, token_s)
    assert cache.n_branches == 1, "nobody knows what a cell costs"
    rig.engine.rent.expire(0, cell_s, token_s)
    assert cache.n_branches == 0


def test_an_idle_text_goes_to_the_hosts_memory_much_sooner() -> None:
    rig = Rig(n_slots=1, n_ctx=1024, host_bytes=100_000)
    ask(rig, ANNA)
    ask(rig, "z" * 100)
    cache = rig.engine.cache
    rig.engine.rent.expire(MIN_IDLE + 1, 1e-6, 1e-3)
    assert (cache.n_branches, cache.n_host_bytes > 0) == (0, True)
    assert ask(rig, ANNA) == len(ANNA)


def test_texts_make_way_for_a_task_that_is_alone_and_come_back_when_they_are_wanted() -> None:
    rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
    for text in (ANNA, BERT):
        ask(rig, text)
    assert ask(rig, "z" * 100) == 0
    assert rig.engine.cache.n_cells <= len(BERT) + 100 + 20, "Anna's cells are free"
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert lost(rig) == []


def three_idle_texts(token_s: float) -> Rig:
    """Anna's, Bert's and one of 300 tokens, each of which takes so long to be copied."""
    rig = Rig(n_slots=3, n_ctx=1024, host_bytes=1_000_000)
    rig.backend.cell_share = 0.0  # nobody makes way
    for text in (ANNA, BERT, "z" * 300):
        ask(rig, text)
    assert rig.engine.cache._host is not None
    rig.engine.cache._host.token_s = token_s
    assert rig.engine.cache.n_cells > len(ANNA + BERT) + 300
    return rig


def test_idle_texts_make_way_for_prompts_that_would_look_at_them() -> None:
    rig = three_idle_texts(token_s=20e-6)
    cache = rig.engine.cache
    n_before, cache.n_rows = cache.n_cells, 0
    rig.engine.rent.clear_way(1000, 1e-7)
    assert cache.n_cells == n_before, "on a GPU"
    rig.backend.cell_share = 1e-4
    rig.engine.rent.clear_way(100, 1e-7)
    assert cache.n_cells == n_before, "100 rows that look at a cell cost less than moving it"
    rig.engine.rent.clear_way(1000, 1e-7)
    assert cache.n_cells < MIN_KEPT
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert lost(rig) == []


def test_a_text_that_the_hosts_memory_cannot_take_does_not_make_way() -> None:
    rig = three_idle_texts(token_s=20e-6)
    cache, host = rig.engine.cache, rig.engine.cache._host
    assert host is not None
    rig.backend.cell_share = 1e-4
    state = rig.backend.states.copy(max(range(3), key=lambda seq: len(cache.slots[seq].tokens)))
    host.token_bytes, host._n_bytes_max = len(state) / 300, len(state) - 1
    n_before = cache.n_cells
    rig.engine.rent.clear_way(100_000, 1e-6)
    assert 300 <= cache.n_cells < n_before, "one of the small ones went"
    assert lost(rig) == []


def test_copies_that_a_step_waits_for_are_no_cost_of_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_s = 0.2
    learnt: list[float] = []
    rig = three_idle_texts(token_s=20e-6)
    rig.backend.cell_share = 1e-4
    states, put = rig.backend.states, rig.backend.states.put

    def slow_put(seq: int, state: State, n: int) -> bool:
        time.sleep(copy_s)
        return put(seq, state, n)

    monkeypatch.setattr(StepBudget, "observe", lambda self, d, p, s, c: learnt.append(s))
    rig.engine.rent.clear_way(100_000, 1e-6)
    monkeypatch.setattr(states, "put", slow_put)
    assert ask(rig, ANNA + "And then?") == len(ANNA) + 1
    assert learnt and max(learnt) < copy_s
    assert rig.engine.counters.step_s >= copy_s, "the step took as long as it took"


def test_no_step_waits_long_for_texts_that_make_way() -> None:
    rig = three_idle_texts(token_s=1e-3)
    cache = rig.engine.cache
    rig.backend.cell_share = 1e-4
    rig.engine.rent.clear_way(100_000, 1e-6)
    n_left = cache.n_cells
    assert n_left < 300 + len(ANNA + BERT), "one text of 80 ms"
    assert n_left >= 300, "300 ms"


def test_texts_stay_beside_company_and_long_tasks_or_where_cells_are_cheap_or_copies_dear() -> None:
    for settings in ({"slot": 0}, {"long": 600}, {"copy_s": 1.0}, {"cell_share": 0.0}):
        rig = Rig(n_slots=2, n_ctx=1024, host_bytes=100_000)
        ask(rig, ANNA)
        if "slot" in settings:
            rig.submit("y" * 100, n_predict=-1)
        host = rig.engine.cache._host
        assert host is not None
        host.token_s = settings.get("copy_s", host.token_s)
        rig.backend.cell_share = settings.get("cell_share", rig.backend.cell_share)
        rig.submit("z" * int(settings.get("long", 100)))
        rig.turn()
        assert host.n_bytes == 0, settings


def test_a_slot_that_is_emptied_is_told_to_the_gateway() -> None:
    rig = Rig(n_slots=1, n_ctx=512)
    ask(rig, ANNA)
    assert rig.engine.cache.empty(rig.engine.slots[0]) == len(ANNA) + 8
    ask(rig, BERT)
    assert lost(rig) == [1]


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
    assert lost(rig) == []
    ask(rig, texts[0] + " again")
    ask(rig, "Number 9 " + "y" * 90)
    assert lost(rig) == [2], "the first was used again"
    assert rig.engine.heartbeat().stats.n_evicted == 1


def test_without_a_number_left_the_oldest_branch_goes() -> None:
    rig = Rig(n_slots=1, n_ctx=2048, n_branches=1)
    ask(rig, ANNA)
    ask(rig, BERT)
    ask(rig, "z" * MIN_KEPT)
    assert lost(rig) == [1]


def test_what_left_the_context_comes_back_from_the_hosts_memory() -> None:
    rig = Rig(n_slots=1, n_cells=200, n_branches=8, host_bytes=100_000)
    ask(rig, ANNA)
    alone = rig.text(1)
    ask(rig, BERT + "x" * 80)
    assert lost(rig) == [], "it is not gone"
    assert ask(rig, ANNA) == len(ANNA)
    assert rig.text(3) == alone
    assert rig.engine.heartbeat().stats.n_restored == len(ANNA)


def test_the_hosts_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    host = HostCache(1000)
    texts = [[i] * 100 for i in range(4)]
    for text in texts[:2]:
        assert host.put("space", text, lambda: bytes(400))
    assert host.find("space", texts[0], 99)
    assert host.put("space", texts[2], lambda: bytes(400))
    assert host.n_bytes == 800
    assert host.find("space", texts[1], 99) is None
    assert not host.put("space", texts[3], lambda: bytes(1001))
    assert host.find("other", texts[0], 99) is None


def test_what_the_hosts_memory_forgets_is_told_with_all_whose_text_it_was() -> None:
    host = HostCache(250)
    host.put("", [1] * 80, lambda: bytes(80), {4})
    host.put("", [1] * 120, lambda: bytes(120), {5})
    host.put("", [1] * 100, lambda: bytes(1), {7})
    assert host.put("", [2] * 100, lambda: bytes(100), {8})
    assert host.forgotten == []
    assert host.put("", [3] * 100, lambda: bytes(100), {9})
    assert host.forgotten == [4, 5, 7]


def test_of_a_text_that_many_ask_for_only_the_newest_tasks_are_remembered() -> None:
    host = HostCache(-1)
    for task in range(MAX_TASKS + 3):
        host.put("", [1] * 80, lambda: bytes(80), {task})
    assert host.forgotten == [0, 1, 2]


def test_the_gateway_hears_of_texts_that_made_way_in_the_hosts_memory() -> None:
    rig = Rig(n_slots=1, n_cells=200, n_branches=8, host_bytes=1000)
    for number, letter in enumerate("abcd", 1):
        ask(rig, letter * 150)
        assert lost(rig) == [*range(1, number - 1)]


def test_a_longer_copy_takes_the_place_of_its_beginning() -> None:
    host = HostCache(-1)
    host.put("", [1] * 80, lambda: bytes(80))
    host.put("", [1] * 120, lambda: bytes(120))
    assert (len(host), host.n_bytes) == (1, 120)
    assert host.put("", [1] * 100, lambda: bytes(1)), "it is there already"
    assert (len(host), host.n_bytes) == (1, 120)


def test_memory_that_cannot_be_cut_takes_only_whole_copies() -> None:
    host = HostCache(-1)
    host.put("", [1] * 80, lambda: b"short")
    host.put("", [1] * 80 + [2] * 20, lambda: b"longer")
    assert host.find("", [1] * 80 + [3], 80, whole=True) is None
    found = host.find("", [1] * 80 + [2] * 30, 109, whole=True)
    assert found is not None and (found.n, found.state) == (100, b"longer")


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
