"""What one gateway does wrong, the others do not notice."""

import math

import pytest

from protocol.errors import ErrorCode
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.sharing import SettingsReport
from protocol.wire.side_tasks import LoraListed, SetLora, SetSystemPrompt
from tests.envelopes import of_task
from tests.worker.link.gateways.test_gateways import Trio, ended, trio
from tests.worker.link.pair import generate
from worker.link.gateways import grants

__all__ = ["trio"]


def serves_b(trio: Trio, task_id: int = 4711) -> None:
    trio.b.send(generate(task_id, "from b"))
    trio.until(lambda: ended(trio.b, task_id))
    assert isinstance(of_task(trio.b.heard, task_id)[-1], m.Done)


def test_a_gateway_that_refuses_the_worker_does_not_end_it_for_the_others(trio: Trio) -> None:
    trio.until_shared()
    trio.a.send(m.Refused(reason="a worker named 'w' is alive"))
    trio.until(lambda: len(trio.link._sessions.grants._shares) == 1)
    serves_b(trio)
    assert trio.link.refused == ""
    trio.b.send(m.Refused(reason="here as well"))
    trio.until(lambda: trio.link.refused)
    assert trio.link.refused == "here as well"


@pytest.mark.slow
def test_a_task_that_comes_again_takes_no_second_slot(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    trio.until_shared()
    for number in range(20):
        trio.a.send(generate(1, "mine", n_predict=-1))
        serves_b(trio, 4711 + number)
    assert trio.engine.n_busy + trio.engine.n_waiting == 1
    trio.a.send(m.Envelope(m.TaskKey(1), m.Cancel()))
    trio.until(lambda: ended(trio.a, 1))
    assert len([one for one in of_task(trio.a.heard, 1) if isinstance(one, m.Terminal)]) == 1
    assert trio.engine.n_busy == trio.engine.n_waiting == 0
    assert caplog.text.count("unexpected message") == 1


def test_no_task_comes_before_the_slots_are_open(trio: Trio) -> None:
    assert not trio.link._sessions.grants.take(m.TaskKey(1, 0, 17))
    assert not trio.link._sessions.grants.take_light(m.TaskKey(1, 0, 17))


@pytest.mark.parametrize(
    "order",
    [
        SetLora(scales=(), version=(1 << 60, "z")),
        SetLora(scales=(), version=(-1, "z")),
        SetLora(scales=(), version=(1, "z" * 10_000)),
        SetLora(scales=((0, math.nan),), version=(1, "z")),
        SetLora(scales=((0, 1.0),) * 100_000, version=(1, "z")),
        SetSystemPrompt(prompt="x", version=((1 << 63) - 1, "z")),
        SetSystemPrompt(prompt="x", anti_prompt="y" * 100_000, version=(1, "z")),
        SetSystemPrompt(prompt="x", assistant_name="y" * 100_000, version=(1, "z")),
    ],
)
def test_settings_that_cannot_be_reach_no_other_gateway(
    trio: Trio, order: SetLora | SetSystemPrompt
) -> None:
    trio.until_shared()
    trio.a.send(m.Envelope(m.TaskKey(1), order))
    trio.until(lambda: ended(trio.a, 1))
    (end,) = of_task(trio.a.heard, 1)
    assert isinstance(end, m.Failed)
    assert end.code is ErrorCode.INVALID_REQUEST
    serves_b(trio)
    assert not trio.b.of(SettingsReport)
    trio.b.send(m.Envelope(m.TaskKey(2), SetLora(scales=None)))
    trio.until(lambda: ended(trio.b, 2))
    assert isinstance(of_task(trio.b.heard, 2)[-1], LoraListed | m.Failed)


def test_tasks_without_a_credit_are_bounded(trio: Trio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grants, "_MAX_LIGHT", 8)
    trio.until_shared()
    n = 100
    texts = [m.Envelope(m.TaskKey(i), m.Tokenize(content="x")) for i in range(n)]
    trio.a.send(*texts)
    trio.b.send(m.Envelope(m.TaskKey(1), m.Tokenize(content="x")))
    trio.until(lambda: all(ended(trio.a, i) for i in range(n)) and ended(trio.b, 1))
    codes = [end.code for end in trio.a.of(m.Failed)]
    assert len(codes) == n - 8
    assert set(codes) == {ErrorCode.OVERLOADED}
    assert trio.b.of(m.Tokenized)


def test_a_greeting_that_is_repeated_tells_the_others_nothing(trio: Trio) -> None:
    trio.until_shared()
    chain = bytes(range(64))
    params = SamplingParams(n_predict=2, temperature=0.0)
    request = m.Generate(prompt="a prompt " * 40, params=params, chain=chain)
    trio.b.send(m.Envelope(m.TaskKey(1), request))
    trio.until(lambda: ended(trio.b, 1))
    n_before = len(trio.b.heard)
    trio.a.send(*[m.Welcome(gateway="another")] * 50)
    serves_b(trio)
    told = trio.b.heard[n_before:]
    assert len([one for one in told if not isinstance(one, m.Envelope)]) < 25, told
