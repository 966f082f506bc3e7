"""Replacing the gateways, without processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.gateways import GatewayReload

OLD = Launch(name="gateway", argv=("old",), env={})
NEW = Launch(name="gateway", argv=("new",), env={})


class Silent:
    """Tells no service manager."""

    def reloading(self) -> None:
        """Tell nobody."""

    def send(self, **_: Any) -> None:
        """Tell nobody."""


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    unused: Any = None
    made = Children((OLD,), tmp_path, unused, unused, unused)
    with made.selector:
        yield made


def test_a_gateway_that_starts_is_replaced_once_it_serves(children: Children) -> None:
    silent: Any = Silent()
    reload = GatewayReload(children, silent, lambda: [NEW], lambda _: None, drain_timeout_s=1.0)
    (old,) = children.gateways
    old.child.become(ChildState.STARTING)
    reload.ask()
    reload.turn(0.0)
    assert children.gateways == [old]
    assert reload.note == "replacing the gateway"
    old.child.become(ChildState.READY)
    reload.turn(1.0)
    assert [watch.child.launch.argv for watch in children.gateways] == [("old",), ("new",)]


def test_a_gateway_that_has_died_starts_again_with_the_new_configuration(
    children: Children,
) -> None:
    silent: Any = Silent()
    reload = GatewayReload(children, silent, lambda: [NEW], lambda _: None, drain_timeout_s=1.0)
    (old,) = children.gateways
    reload.ask()
    reload.turn(0.0)
    assert old.child.launch is NEW
    assert reload.note == ""
