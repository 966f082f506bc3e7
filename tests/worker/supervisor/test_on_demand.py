"""Models that are loaded by order: what a gateway hears when it connects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protocol.config.config import GatewayConfig, PoolConfig
from protocol.process.control import Line, Listed, Order, Phase, Verb, WorkerReport
from worker.models.catalog import open_catalog
from worker.supervisor.children.children import Children
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.children.watch import ChildWatch
from worker.supervisor.on_demand import OnDemand

_Opened = tuple[OnDemand, list[ChildWatch]]

PRESET = "[m]\nmodel = m.gguf\nload-on-startup = true\n"


class Control:
    """The end of a control channel that keeps what all gateways were told."""

    gateways = ("the other",)

    def __init__(self) -> None:
        self.reported: list[Line] = []

    def answer(self, peer: Any, line: Any) -> None:
        """Reach nobody."""

    def report(self, line: Any) -> None:
        """Keep the line."""
        self.reported.append(line)


def greeted(on_demand: OnDemand) -> tuple[WorkerReport, ...]:
    (line,) = on_demand.greeting()
    assert isinstance(line, Listed)
    return line.workers


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> _Opened:
    """Load the model m; `folder` is where its configuration is written."""
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    (tmp_path / "models.ini").write_text(PRESET)
    config = PoolConfig(gateway=GatewayConfig(models_preset=str(tmp_path / "models.ini")))
    control: Any = Control()
    on_demand = OnDemand(open_catalog(config, {}), control, folder, models_max=0)
    unused: Any = None
    children = Children((), tmp_path, unused, unused, unused)
    with children.selector:
        on_demand.open(children, 0.0)
    return on_demand, children.watches


@pytest.fixture
def loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[OnDemand, ChildWatch]]:
    on_demand, (watch,) = opened(tmp_path, monkeypatch, tmp_path)
    yield on_demand, watch
    on_demand.close()


def test_a_gateway_hears_of_a_load_that_could_not_begin_before_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_demand, watches = opened(tmp_path, monkeypatch, tmp_path / "gone")
    assert not watches
    (report,) = greeted(on_demand)
    assert (report.model, report.phase, report.exit_code) == ("m", Phase.GONE, 78)
    assert "No such file" in report.why
    on_demand.close()


def test_a_gateway_hears_of_a_load_that_failed_before_it_was_there(
    loading: tuple[OnDemand, ChildWatch],
) -> None:
    on_demand, watch = loading
    watch.child.state, watch.exit_code = ChildState.GIVEN_UP, 78
    on_demand.report_changes()
    (report,) = greeted(on_demand)
    assert (report.model, report.phase, report.exit_code) == ("m", Phase.GONE, 78)


@pytest.mark.parametrize("verb", [Verb.RELOAD, Verb.DELETE])
def test_a_list_names_the_order_that_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    (tmp_path / "models.ini").write_text("[m]\nmodel = m.gguf\n")
    config = PoolConfig(gateway=GatewayConfig(models_preset=str(tmp_path / "models.ini")))
    control: Any = Control()
    on_demand = OnDemand(open_catalog(config, {}), control, tmp_path, models_max=0)
    unused: Any = None
    children = Children((), tmp_path, unused, unused, unused)
    with children.selector:
        on_demand.open(children, 0.0)
        on_demand.carry_out(Order(verb=verb, model="x", id="7"), unused, unused, 0.0)
        on_demand.reread(0.0)
    on_demand.close()
    assert [line.answers for line in control.reported] == ["7", ""]


def test_a_recall_ends_with_the_model_that_it_was_about(
    loading: tuple[OnDemand, ChildWatch],
) -> None:
    on_demand, watch = loading
    asker: Any = "the one"
    answer: Any = None
    unload = Order(verb=Verb.UNLOAD, model="m", if_unused=True)
    on_demand.carry_out(unload, asker, answer, 0.0)
    assert list(on_demand.deadlines())
    watch.child.state, watch.exit_code = ChildState.GIVEN_UP, 78
    on_demand.report_changes()
    assert not list(on_demand.deadlines())
    on_demand.carry_out(unload, asker, answer, 0.0)
    assert not list(on_demand.deadlines()), "a model that does not run is recalled"


def test_the_configuration_of_a_model_is_there_as_long_as_the_model_is(
    loading: tuple[OnDemand, ChildWatch], tmp_path: Path
) -> None:
    """The runtime directory lies in memory on most systems."""
    on_demand, watch = loading
    assert [path.name for path in tmp_path.glob("model-*.json")] == ["model-1.json"]
    on_demand.report_changes()
    assert list(tmp_path.glob("model-*.json"))
    watch.child.state = ChildState.ENDED
    on_demand.report_changes()
    assert not list(tmp_path.glob("model-*.json"))
