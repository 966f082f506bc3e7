"""Decisions on which models run and which requests wait, with a simulated supervisor."""

import pytest

from gateway.models.model import ManagedModel
from gateway.pool.status import ModelState
from protocol.errors import ErrorCode, InvalidRequest
from protocol.process.control import Listed, ModelInfo, Phase, WorkerReport
from tests.gateway.models.supervisor import Pretended


def test_the_first_request_loads_its_model_and_is_admitted_once_it_is_there() -> None:
    one = Pretended("a", "b")
    one.ask(1, "a")
    assert (one.done, one.admitted) == (["load a"], [])
    one.obey()
    assert one.admitted == [1]
    assert one.states.models["a"].n_requests == 1
    assert one.told == ["a loading", "a loading", "a loaded"]


def test_a_loaded_model_is_used_at_once() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.obey()
    one.ask(2, "a")
    assert one.admitted == [1, 2]
    assert one.done == ["load a"]


def test_requests_for_one_model_share_one_load_and_one_place() -> None:
    one = Pretended("a", "b", "c", models_max=2)
    for request_id, name in ((1, "a"), (2, "b")):
        one.ask(request_id, name)
    one.obey()
    one.release("b")
    for request_id in (3, 4, 5):
        one.ask(request_id, "c")
    one.obey()
    assert one.done == ["load a", "load b", "unload b", "load c"]
    assert one.admitted == [1, 2, 3, 4, 5]
    assert one.running() == ["a", "c"]


def test_the_model_used_longest_ago_makes_room() -> None:
    one = Pretended("a", "b", "c", models_max=2)
    for request_id, name in ((1, "a"), (2, "b"), (3, "a")):
        one.ask(request_id, name)
        one.obey()
    for name in ("a", "b", "a"):
        one.release(name)
    one.ask(4, "c")
    one.obey()
    assert one.running() == ["a", "c"]


def test_a_busy_model_is_never_given_up() -> None:
    one = Pretended("a", "b", models_max=1)
    one.ask(1, "a")
    one.obey()
    one.ask(2, "b")
    assert one.done == ["load a"]
    one.release("a")
    one.obey()
    assert one.done == ["load a", "unload a", "load b"]
    assert one.admitted == [1, 2]


def test_waiting_models_are_served_in_the_order_in_which_they_were_asked_for() -> None:
    one = Pretended("a", "b", "c", models_max=1)
    one.ask(1, "a")
    one.obey()
    one.ask(2, "b")
    one.ask(3, "c")
    one.release("a")
    one.obey()
    assert one.admitted == [1, 2]
    one.release("b")
    one.obey()
    assert one.admitted == [1, 2, 3]


def test_who_leaves_the_queue_costs_nobody_a_place() -> None:
    one = Pretended("a", "b", models_max=1)
    one.ask(1, "a")
    one.obey()
    one.ask(2, "b")
    one.perform(one.states.leave(2))
    one.release("a")
    assert one.done == ["load a"]
    assert one.running() == ["a"]


def test_a_model_that_somebody_waits_for_makes_no_room_before_it_was_used() -> None:
    one = Pretended("a", "b", models_max=1)
    one.ask(1, "a")
    one.ask(2, "b")
    one.says("a", Phase.LOADING)
    assert one.done == ["load a"]
    one.obey()
    assert one.admitted == [1]
    assert one.running() == ["a"]


def test_all_who_wait_for_a_model_that_fails_are_told_why() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.ask(2, "a")
    one.says("a", Phase.LOADING)
    one.says("a", Phase.GONE, exit_code=78, why="it is no GGUF file")
    assert set(one.refused) == {1, 2}
    error = one.refused[1]
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model name=a failed to load: it is no GGUF file"
    assert one.states.models["a"].has_failed
    assert one.states.models["a"].exit_code == 78


def test_a_model_that_failed_is_tried_again_by_the_next_request() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.says("a", Phase.GONE, exit_code=1)
    one.ask(2, "a")
    one.orders.pop(0)
    one.obey()
    assert one.admitted == [2]
    assert not one.states.models["a"].has_failed


def test_a_failure_frees_the_place_for_the_next_in_line() -> None:
    one = Pretended("a", "b", models_max=1)
    one.ask(1, "a")
    one.ask(2, "b")
    one.orders.clear()
    one.says("a", Phase.GONE, exit_code=1)
    one.obey()
    assert one.admitted == [2]


def test_a_model_that_is_told_to_go_takes_nothing_new_and_comes_back_for_who_waits() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.obey()
    one.perform(one.states.unload(one.states.models["a"]))
    one.ask(2, "a")
    assert one.admitted == [1]
    assert one.states.models["a"].state is ModelState.LOADED
    one.obey()
    assert one.admitted == [1, 2]
    assert one.done == ["load a", "unload a", "load a"]


def test_unloading_a_model_that_loads_sends_away_who_waits_for_it() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.perform(one.states.unload(one.states.models["a"]))
    assert one.refused[1].message == "model name=a is not running"
    one.orders.pop(0)
    one.obey()
    assert one.running() == []
    assert not one.states.models["a"].has_failed


def test_a_dead_worker_that_starts_again_is_waited_for() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    one.obey()
    one.says("a", Phase.LOADING)
    one.ask(2, "a")
    assert one.admitted == [1]
    one.says("a", Phase.READY)
    assert one.admitted == [1, 2]


def test_a_model_of_two_workers_is_there_with_the_first_and_gone_with_the_last() -> None:
    model = ManagedModel(ModelInfo(name="m"))
    model.become(ModelState.LOADING)

    def hear(worker: str, phase: Phase, exit_code: int = 0) -> ModelState:
        model.update(WorkerReport(model="m", worker=worker, phase=phase, exit_code=exit_code))
        return model.state

    assert hear("x", Phase.LOADING) is ModelState.LOADING
    assert hear("y", Phase.LOADING) is ModelState.LOADING
    assert hear("x", Phase.READY) is ModelState.LOADED
    assert hear("y", Phase.GONE, 1) is ModelState.LOADED
    assert not model.has_failed
    assert hear("x", Phase.GONE, 1) is ModelState.UNLOADED
    assert model.has_failed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "model name is missing from the request"),
        ("", "model name is missing from the request"),
        ("z", "model 'z' not found"),
    ],
)
def test_unknown_models_are_refused_in_llama_servers_words(name: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        Pretended("a").states.find(name)


def test_a_model_goes_by_its_aliases() -> None:
    one = Pretended()
    info = ModelInfo(name="a", aliases=("x", "y"))
    one.states.listed(Listed(models=(info,)))
    assert one.states.find("y").name == "a"


def test_a_reload_ends_what_changed_or_went_and_adds_what_is_new() -> None:
    one = Pretended("same", "changed", "gone", "idle")
    for request_id, name in enumerate(("same", "changed", "gone"), 1):
        one.ask(request_id, name)
    one.obey()
    gone = one.states.models["gone"]
    one.lists("same", "changed", "new", changed="other")
    one.obey()
    assert one.done[3:] == ["unload changed", "unload gone"]
    assert list(one.states.models) == ["same", "changed", "new"]
    assert one.running() == ["same"]
    one.perform(one.states.release(gone))  # its request ended after it


def test_who_waits_for_a_model_that_is_no_more_is_told_so() -> None:
    one = Pretended("a", "b", models_max=1)
    one.ask(1, "a")
    one.obey()
    one.ask(2, "b")
    one.lists("a")
    assert one.refused[2].message == "model 'b' not found"


def test_a_supervisor_that_is_new_says_what_runs() -> None:
    one = Pretended("a", "b")
    one.ask(1, "a")
    one.obey()
    one.ask(2, "b")
    ready = WorkerReport(model="a", worker="w", phase=Phase.READY)
    infos = (ModelInfo(name="a"), ModelInfo(name="b"))
    one.perform(one.states.listed(Listed(models=infos, is_greeting=True, workers=(ready,))))
    assert one.states.models["a"].is_usable
    assert one.done == ["load a", "load b", "load b"]
    one.release("a")


def test_an_order_that_cannot_be_done_ends_the_wait() -> None:
    one = Pretended("a")
    one.ask(1, "a")
    gone = WorkerReport(model="a", worker="", phase=Phase.GONE, exit_code=78, why="it is not there")
    one.perform(one.states.reported(gone))
    assert "it is not there" in one.refused[1].message


@pytest.mark.parametrize("models_max", [0, -1])
def test_no_limit_is_no_limit(models_max: int) -> None:
    names = [f"m{i}" for i in range(9)]
    one = Pretended(*names, models_max=models_max)
    for request_id, name in enumerate(names):
        one.ask(request_id, name)
    one.obey()
    assert one.running() == names


def test_room_can_be_made_unless_everybody_is_busy() -> None:
    one = Pretended("a", "b", models_max=1)
    assert one.states.can_make_room()
    one.ask(1, "a")
    one.obey()
    assert not one.states.can_make_room()
    one.release("a")
    assert one.states.can_make_room()
