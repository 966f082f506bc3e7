"""Random events in random order: limits, leases and the queue of models stay consistent."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.process.control import Phase, Verb
from tests.gateway.models.supervisor import Pretended

NAMES = ("a", "b", "c", "d")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(NAMES)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("unload"), st.sampled_from(NAMES)),
        st.tuples(st.just("insist"), st.sampled_from(NAMES)),
        st.tuples(st.just("kept"), st.sampled_from(NAMES)),
        st.tuples(st.just("not kept"), st.sampled_from(NAMES)),
        st.tuples(st.just("obey"), st.booleans()),
        st.tuples(st.just("crash"), st.sampled_from(NAMES)),
    ),
    max_size=60,
)


class Crowd:
    """Clients that request models, wait for them, use them and leave."""

    def __init__(self, models_max: int) -> None:
        self.one = Pretended(*NAMES, models_max=models_max)
        self.limit = models_max
        self.wanted: dict[int, str] = {}
        self.left: set[int] = set()

    def using(self) -> list[int]:
        return [request_id for request_id in self.one.admitted if request_id in self.wanted]

    def waiting(self) -> list[int]:
        ended = {*self.one.admitted, *self.one.refused, *self.left}
        return [request_id for request_id in self.wanted if request_id not in ended]

    def step(self, what: str, which: str | int) -> None:
        one = self.one
        if what == "ask":
            assert isinstance(which, str)
            request_id = len(self.wanted) + len(self.left) + 1000
            self.wanted[request_id] = which
            one.ask(request_id, which)
        elif what == "leave" and (waiting := self.waiting()):
            request_id = waiting[int(which) % len(waiting)]
            self.left.add(request_id)
            one.perform(one.states.leave(request_id))
        elif what == "release" and (using := self.using()):
            request_id = using[int(which) % len(using)]
            one.admitted.remove(request_id)
            self.left.add(request_id)
            one.release(self.wanted[request_id])
        elif what == "unload":
            one.perform(one.states.unload(one.states.models[str(which)]))
        elif what == "insist":
            one.perform(one.states.insist(one.states.models[str(which)]))
        elif what in ("kept", "not kept"):
            one.perform(one.states.kept(str(which), is_kept=what == "kept"))
        elif what == "obey" and one.orders:
            self.obey(fails=bool(which))
        elif what == "crash" and one.states.models[str(which)].workers:
            one.says(str(which), Phase.LOADING)
            one.says(str(which), Phase.READY)

    def obey(self, *, fails: bool = False) -> None:
        order = self.one.orders.pop(0)
        if order.verb is Verb.UNLOAD:
            self.one.says(order.model, Phase.GONE)
            return
        self.one.says(order.model, Phase.LOADING)
        if fails:
            self.one.says(order.model, Phase.GONE, exit_code=1)
        else:
            self.one.says(order.model, Phase.READY)

    def check(self) -> None:
        states = self.one.states
        assert len(self.one.running()) <= self.limit
        for name in NAMES:
            users = [request_id for request_id in self.using() if self.wanted[request_id] == name]
            assert states.models[name].n_requests == len(users)


@given(STEPS, st.integers(1, 3))
def test_places_are_never_overdrawn_and_uses_are_counted(
    steps: list[tuple[str, str | int]], models_max: int
) -> None:
    crowd = Crowd(models_max)
    for what, which in steps:
        crowd.step(what, which)
        crowd.check()


@given(STEPS, st.integers(1, 3))
def test_everybody_who_waits_is_answered_once_the_others_end(
    steps: list[tuple[str, str | int]], models_max: int
) -> None:
    crowd = Crowd(models_max)
    for what, which in steps:
        crowd.step(what, which)
    for name in NAMES:
        crowd.step("not kept", name)
    for _ in range(500):
        if crowd.one.orders:
            crowd.obey()
        elif crowd.using():
            crowd.step("release", 0)
        else:
            break
    assert crowd.waiting() == []
    assert not any(model.is_closing for model in crowd.one.states.models.values())
    assert repr(crowd.one.states).endswith("queue=[]>")
