"""Several gateways and one supervisor, their lines under way in any order between connections."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from protocol.process.control import Line, NoRoom, Order, Phase, Verb, WorkerReport
from tests.gateway.models.supervisor import Pretended
from worker.supervisor.recalls import ModelRecalls

NAMES = ("a", "b", "c")
N_GATEWAYS = 3

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 8)),
        st.tuples(st.just("release"), st.integers(0, 8)),
        st.tuples(st.just("insist"), st.integers(0, 8)),
        st.tuples(st.just("hear"), st.integers(0, 8)),
        st.tuples(st.just("obey"), st.integers(0, 8)),
        st.tuples(st.just("finish"), st.integers(0, 8)),
        st.tuples(st.just("unload"), st.integers(0, 8)),
        st.tuples(st.just("die"), st.integers(0, 40)),
        st.tuples(st.just("crash"), st.integers(0, 8)),
    ),
    max_size=80,
)


@dataclass(eq=False)
class Gateway:
    """One gateway, the lines on their way to it, and its requests."""

    one: Pretended
    lines: deque[Line] = field(default_factory=deque)
    wanted: dict[int, str] = field(default_factory=dict)

    def uses(self, name: str) -> int:
        return self.one.states.models[name].n_requests

    def hear(self) -> None:
        self.one.hear(self.lines.popleft())

    def release(self) -> bool:
        """End a request that has its model."""
        if not self.one.admitted:
            return False
        self.one.release(self.wanted.pop(self.one.admitted.pop(0)))
        return True

    @property
    def waiting(self) -> set[int]:
        return self.wanted.keys() - set(self.one.admitted) - self.one.refused.keys()


class Host:
    """The supervisor without processes: its end of the control channel, and what runs."""

    def __init__(self, models_max: int) -> None:
        self.models_max = models_max
        self.gateways = [
            Gateway(Pretended(*NAMES, models_max=models_max)) for _ in range(N_GATEWAYS)
        ]
        self.running: dict[str, Phase] = {}
        self.recalls: ModelRecalls[Gateway] = ModelRecalls(self)
        self.n_requests = 0

    def answer(self, peer: Gateway, line: Line) -> None:
        peer.lines.append(line)

    def report(self, line: Line) -> None:
        for one in self.gateways:
            one.lines.append(line)

    def say(self, name: str, phase: Phase) -> None:
        if phase is Phase.GONE:
            del self.running[name]
            self.recalls.forget(name)
        else:
            self.running[name] = phase
        self.report(WorkerReport(model=name, worker=f"{name}-1", phase=phase))

    def obey(self, peer: Gateway) -> None:
        self.carry_out(peer.one.orders.pop(0), peer)
        self.settle()

    def carry_out(self, order: Order, peer: Gateway) -> None:
        match order.verb:
            case Verb.LOAD if order.model in self.running:
                pass
            case Verb.LOAD if len(self.running) >= self.models_max:
                self.answer(peer, NoRoom(model=order.model))
            case Verb.LOAD:
                self.say(order.model, Phase.LOADING)
            case Verb.UNLOAD if order.if_unused:
                if order.model in self.running:
                    self.recalls.ask(order.model, peer, 0.0, is_overdue=order.is_overdue)
            case Verb.UNLOAD:
                self.recalls.forget(order.model)
                self.unload(order.model)
            case _:
                self.recalls.take(order, peer)

    def settle(self) -> None:
        for name in self.recalls.settled(0.0):
            assert not any(one.uses(name) for one in self.gateways), f"{name} is in use"
            self.unload(name)

    def unload(self, name: str) -> None:
        if self.running.get(name, Phase.LEAVING) is not Phase.LEAVING:
            self.say(name, Phase.LEAVING)

    def finish(self, name: str) -> None:
        """Let a load or an unload end."""
        phase = self.running[name]
        if phase is not Phase.READY:
            self.say(name, Phase.READY if phase is Phase.LOADING else Phase.GONE)

    def ask(self, gateway: Gateway, name: str) -> None:
        self.n_requests += 1
        gateway.wanted[self.n_requests] = name
        gateway.one.ask(self.n_requests, name)

    def step(self, what: str, n: int) -> None:
        gateway = self.gateways[n % len(self.gateways)]
        match what:
            case "ask":
                self.ask(gateway, NAMES[n // N_GATEWAYS])
            case "release":
                gateway.release()
            case "insist":
                gateway.one.insist(NAMES[n // N_GATEWAYS])
            case "hear" if gateway.lines:
                gateway.hear()
            case "obey" if gateway.one.orders:
                self.obey(gateway)
            case "finish" if self.running:
                self.finish(list(self.running)[n % len(self.running)])
            case "unload":
                model = gateway.one.states.models[NAMES[n // N_GATEWAYS]]
                gateway.one.perform(gateway.one.states.unload(model))
            case "crash" if self.running:
                self.say(list(self.running)[n % len(self.running)], Phase.GONE)
            case "die" if n < len(self.gateways) > 1:
                self.gateways.remove(gateway)
                self.settle()

    def turn(self) -> bool:
        """Let everything that is under way arrive; false if nothing was."""
        before = [(one.lines, one.one.orders) for one in self.gateways]
        has_news = any(lines or orders for lines, orders in before)
        for one in self.gateways:
            while one.lines:
                one.hear()
            while one.one.orders:
                self.obey(one)
        changing = [name for name, phase in self.running.items() if phase is not Phase.READY]
        for name in changing:
            self.finish(name)
        return has_news or bool(changing)


@given(STEPS, st.integers(1, 2))
def test_no_model_makes_room_while_any_gateway_uses_it(
    steps: list[tuple[str, int]], models_max: int
) -> None:
    host = Host(models_max)
    for what, n in steps:
        host.step(what, n)
        assert len(host.running) <= models_max
    for _ in range(500):
        if not host.turn() and not sum(one.release() for one in host.gateways):
            break
    for one in host.gateways:
        assert not one.waiting, "nobody uses a model, and still somebody waits for one"
        models = one.one.states.models.values()
        assert not any(model.is_stopping or model.is_ceded for model in models)


def loaded(host: Host, name: str) -> None:
    """Let the first gateway use a model once."""
    host.ask(host.gateways[0], name)
    while host.turn():
        pass
    host.gateways[0].release()


def test_a_model_that_another_gateway_uses_without_end_makes_room_for_one_that_waited_long() -> (
    None
):
    host = Host(1)
    first, second, third = host.gateways
    for gateway in (second, third):
        host.ask(gateway, "a")
    while host.turn():
        pass
    host.ask(first, "b")
    while host.turn():
        pass
    first.one.insist("b")
    while host.turn():
        pass
    host.ask(second, "a")  # it overlaps the one before, and so would the next
    assert second.release() and third.release()
    while host.turn():
        pass
    assert host.running == {"b": Phase.READY} and first.one.admitted
    assert second.waiting, "its turn comes when the first gateway has none any more"
    first.release()
    while host.turn():
        pass
    assert host.running == {"a": Phase.READY} and not second.waiting


def test_a_model_that_died_before_it_was_recalled_can_be_loaded_again() -> None:
    host = Host(1)
    first, second, _ = host.gateways
    loaded(host, "a")
    host.ask(first, "b")
    host.say("a", Phase.GONE)
    while host.turn():
        pass
    first.release()
    host.ask(second, "a")
    while host.turn():
        pass
    assert second.one.admitted == [3]


def test_a_model_that_died_while_it_was_recalled_stays_when_it_is_loaded_again() -> None:
    host = Host(1)
    first, second, third = host.gateways
    loaded(host, "a")
    host.ask(first, "b")
    host.obey(first)
    host.say("a", Phase.GONE)
    while second.lines:
        second.hear()
    host.ask(second, "a")
    while second.one.orders:
        host.obey(second)
    host.finish("a")
    while second.lines:
        second.hear()
    assert second.one.admitted == [2 + 1]
    third.hear()
    host.turn()
    assert host.running == {"a": Phase.READY}


def test_a_gateway_cannot_keep_a_model_that_is_being_unloaded() -> None:
    host = Host(1)
    first, second, _ = host.gateways
    loaded(host, "a")
    host.ask(second, "a")
    host.ask(first, "b")
    host.obey(first)
    while second.lines:
        second.hear()
    assert [order.verb for order in second.one.orders] == [Verb.KEEP]
    first.one.perform(first.one.states.unload(first.one.states.models["a"]))
    host.carry_out(Order(verb=Verb.UNLOAD, model="a"), first)
    host.obey(second)
    while second.lines:
        second.hear()
    assert not second.one.states.models["a"].is_usable
