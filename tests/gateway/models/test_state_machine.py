"""Decisions on which models run and which requests wait, with a simulated supervisor."""

import pytest

from gateway.models.model import ManagedModel
from gateway.pool.status import ModelState
from protocol.errors import ErrorCode, InvalidRequest
from protocol.process.control import Listed, ModelInfo, Phase, WorkerReport
from tests.gateway.models.supervisor import Pretended


def test_the_first_request_loads_its_model_and_is_admitted_once_it_is_there() -> None:
    models = Pretended("a", "b")
    models.ask(1, "a")
    assert (models.done, models.admitted) == (["load a"], [])
    models.obey()
    assert models.admitted == [1]
    assert models.states.models["a"].n_requests == 1
    assert models.told == ["a loading", "a loading", "a loaded"]


def test_a_loaded_model_is_used_at_once() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.obey()
    models.ask(2, "a")
    assert models.admitted == [1, 2]
    assert models.done == ["load a"]


def test_requests_for_one_model_share_one_load_and_one_place() -> None:
    models = Pretended("a", "b", "c", models_max=2)
    for request_id, name in ((1, "a"), (2, "b")):
        models.ask(request_id, name)
    models.obey()
    models.release("b")
    for request_id in (3, 4, 5):
        models.ask(request_id, "c")
    models.obey()
    assert models.done == ["load a", "load b", "unload b", "load c"]
    assert models.admitted == [1, 2, 3, 4, 5]
    assert models.running() == ["a", "c"]


def test_the_model_used_longest_ago_makes_room() -> None:
    models = Pretended("a", "b", "c", models_max=2)
    for request_id, name in ((1, "a"), (2, "b"), (3, "a")):
        models.ask(request_id, name)
        models.obey()
    for name in ("a", "b", "a"):
        models.release(name)
    models.ask(4, "c")
    models.obey()
    assert models.running() == ["a", "c"]


def test_a_busy_model_is_never_given_up() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    assert models.done == ["load a"]
    models.release("a")
    models.obey()
    assert models.done == ["load a", "unload a", "load b"]
    assert models.admitted == [1, 2]


def test_a_busy_model_takes_nothing_more_once_another_has_waited_long() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    models.ask(3, "a")
    assert models.admitted == [1, 3]
    models.insist("b")
    models.ask(4, "a")
    models.release("a")
    models.obey()
    assert (models.admitted, models.done) == ([1, 3], ["load a"])
    models.release("a")
    models.obey()
    assert (models.admitted, models.done[1:]) == ([1, 3, 2], ["unload a", "load b"])
    models.release("b")
    models.obey()
    assert (models.admitted, models.done[3:]) == ([1, 3, 2, 4], ["unload b", "load a"])


def test_of_busy_models_the_one_used_longest_ago_takes_nothing_more() -> None:
    models = Pretended("a", "b", "c", models_max=2)
    for request_id, name in ((1, "a"), (2, "b"), (3, "a"), (4, "c")):
        models.ask(request_id, name)
        models.obey()
    models.insist("c")
    models.ask(5, "a")
    models.ask(6, "b")
    assert models.admitted == [1, 2, 3, 5]


def test_a_model_takes_requests_again_when_nobody_waits_for_its_place() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    models.insist("b")
    models.ask(3, "a")
    assert models.admitted == [1]
    models.perform(models.states.leave(2))
    assert models.admitted == [1, 3]
    models.ask(4, "a")
    assert models.admitted == [1, 3, 4]


def test_a_model_that_finds_no_room_is_not_ordered_again_at_once() -> None:
    """The supervisor may run one that has left the list, which the gateway does not know."""
    models = Pretended("a", models_max=1)
    models.ask(1, "a")
    models.orders.clear()
    models.perform(models.states.refused_room("a"))
    assert models.orders == []
    models.perform(models.states.retry())
    models.obey()
    assert models.admitted == [1]


def test_waiting_models_are_served_in_the_order_in_which_they_were_asked_for() -> None:
    models = Pretended("a", "b", "c", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    models.ask(3, "c")
    models.release("a")
    models.obey()
    assert models.admitted == [1, 2]
    models.release("b")
    models.obey()
    assert models.admitted == [1, 2, 3]


def test_who_leaves_the_queue_costs_nobody_a_place() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    models.perform(models.states.leave(2))
    models.release("a")
    assert models.done == ["load a"]
    assert models.running() == ["a"]


def test_a_model_that_somebody_waits_for_makes_no_room_before_it_was_used() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.ask(2, "b")
    models.says("a", Phase.LOADING)
    assert models.done == ["load a"]
    models.obey()
    assert models.admitted == [1]
    assert models.running() == ["a"]


def test_all_who_wait_for_a_model_that_fails_are_told_why() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.ask(2, "a")
    models.says("a", Phase.LOADING)
    models.says("a", Phase.GONE, exit_code=78, why="it is no GGUF file")
    assert set(models.refused) == {1, 2}
    error = models.refused[1]
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "model name=a failed to load: it is no GGUF file"
    assert models.states.models["a"].has_failed
    assert models.states.models["a"].exit_code == 78


def test_a_model_that_failed_is_tried_again_by_the_next_request() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.says("a", Phase.GONE, exit_code=1)
    models.ask(2, "a")
    models.orders.pop(0)
    models.obey()
    assert models.admitted == [2]
    assert not models.states.models["a"].has_failed


def test_a_failure_frees_the_place_for_the_next_in_line() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.ask(2, "b")
    models.orders.clear()
    models.says("a", Phase.GONE, exit_code=1)
    models.obey()
    assert models.admitted == [2]


def test_a_model_that_is_told_to_go_takes_nothing_new_and_comes_back_for_who_waits() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.obey()
    models.perform(models.states.unload(models.states.models["a"]))
    models.ask(2, "a")
    assert models.admitted == [1]
    assert models.states.models["a"].state is ModelState.LOADED
    models.obey()
    assert models.admitted == [1, 2]
    assert models.done == ["load a", "unload a", "load a"]


def test_unloading_a_model_that_loads_sends_away_who_waits_for_it() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.perform(models.states.unload(models.states.models["a"]))
    assert models.refused[1].message == "model name=a is not running"
    models.orders.pop(0)
    models.obey()
    assert models.running() == []
    assert not models.states.models["a"].has_failed


def test_a_dead_worker_that_starts_again_is_waited_for() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    models.obey()
    models.says("a", Phase.LOADING)
    models.ask(2, "a")
    assert models.admitted == [1]
    models.says("a", Phase.READY)
    assert models.admitted == [1, 2]


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
    models = Pretended()
    info = ModelInfo(name="a", aliases=("x", "y"))
    models.states.listed(Listed(models=(info,)))
    assert models.states.find("y").name == "a"


def test_a_reload_ends_what_changed_or_went_and_adds_what_is_new() -> None:
    models = Pretended("same", "changed", "gone", "idle")
    for request_id, name in enumerate(("same", "changed", "gone"), 1):
        models.ask(request_id, name)
    models.obey()
    gone = models.states.models["gone"]
    models.lists("same", "changed", "new", changed="other")
    models.obey()
    assert models.done[3:] == ["unload changed", "unload gone"]
    assert list(models.states.models) == ["same", "changed", "new"]
    assert models.running() == ["same"]
    models.perform(models.states.release(gone))  # its request ended after it


def test_who_waits_for_a_model_that_is_no_more_is_told_so() -> None:
    models = Pretended("a", "b", models_max=1)
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    models.lists("a")
    assert models.refused[2].message == "model 'b' not found"


def test_a_supervisor_that_is_new_says_what_runs() -> None:
    models = Pretended("a", "b")
    models.ask(1, "a")
    models.obey()
    models.ask(2, "b")
    ready = WorkerReport(model="a", worker="w", phase=Phase.READY)
    infos = (ModelInfo(name="a"), ModelInfo(name="b"))
    models.perform(models.states.listed(Listed(models=infos, is_greeting=True, workers=(ready,))))
    assert models.states.models["a"].is_usable
    assert models.done == ["load a", "load b", "load b"]
    models.release("a")


def test_an_order_that_cannot_be_done_ends_the_wait() -> None:
    models = Pretended("a")
    models.ask(1, "a")
    gone = WorkerReport(model="a", worker="", phase=Phase.GONE, exit_code=78, why="it is not there")
    models.perform(models.states.reported(gone))
    assert "it is not there" in models.refused[1].message


@pytest.mark.parametrize("models_max", [0, -1])
def test_no_limit_is_no_limit(models_max: int) -> None:
    names = [f"m{i}" for i in range(9)]
    models = Pretended(*names, models_max=models_max)
    for request_id, name in enumerate(names):
        models.ask(request_id, name)
    models.obey()
    assert models.running() == names


def test_room_can_be_made_unless_everybody_is_busy() -> None:
    models = Pretended("a", "b", models_max=1)
    assert models.states.can_make_room()
    models.ask(1, "a")
    models.obey()
    assert not models.states.can_make_room()
    models.release("a")
    assert models.states.can_make_room()
