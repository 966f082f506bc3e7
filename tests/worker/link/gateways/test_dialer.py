"""Waits between two attempts to reach a gateway, and the keys that are tried."""

from pathlib import Path

import pytest
import zmq

from protocol.curve import public_text, secret_text
from protocol.errors import ConfigError
from worker.link.gateways.dialer import CurveFiles, GatewayDialer, open_dialer


def files(folder: Path, *gateways: str) -> CurveFiles:
    (folder / "w.key").write_text(secret_text(zmq.curve_keypair()[1].decode()))
    keys = folder / "gateways"
    keys.mkdir()
    for name in gateways:
        (keys / f"{name}.pub").write_text(public_text(zmq.curve_keypair()[0].decode()))
    return CurveFiles(folder / "w.key", (keys,))


def prepared(dial: GatewayDialer) -> str:
    """Set a socket's options; return the gateway key that it got."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        dial.prepare(socket)
        return dial._server


def test_waits_double_up_to_eight_seconds_and_begin_anew_after_a_welcome(tmp_path: Path) -> None:
    dial = open_dialer("tcp://h:1", files(tmp_path, "g"))
    dial.chance = lambda: 0.5
    prepared(dial)
    assert [dial.failed() for _ in range(7)] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    dial.welcomed()
    assert dial.failed() == 0.25


def test_waits_differ_by_chance(tmp_path: Path) -> None:
    dial = open_dialer("tcp://h:1", files(tmp_path, "g"))
    prepared(dial)
    dial.chance = iter([0.0, 1.0]).__next__
    assert dial.failed() == 0.1875
    dial.welcomed()
    assert dial.failed() == 0.3125


def test_a_gateway_of_this_host_is_dialled_at_once() -> None:
    dial = open_dialer("ipc://x", None)
    assert dial.failed() == 0.0
    assert max(dial.failed() for _ in range(20)) == 1.0


def test_each_key_of_the_gateways_has_its_turn_before_the_waits_grow(tmp_path: Path) -> None:
    dial = open_dialer("tcp://h:1", files(tmp_path, "a", "b", "h"))
    dial.chance = lambda: 0.5
    tried, waits = [], []
    for _ in range(4):
        tried.append(prepared(dial))
        waits.append(dial.failed())
    assert len(set(tried[:3])) == 3 and tried[3] == tried[0]
    assert waits == [0.25, 0.25, 0.25, 0.5]
    first = (tmp_path / "gateways" / "h.pub").read_text()
    assert tried[0] in first  # the file that is named for the host


def test_a_gateway_that_comes_back_is_dialled_with_the_key_that_it_had(tmp_path: Path) -> None:
    dial = open_dialer("tcp://h:1", files(tmp_path, "a", "b"))
    tried, more = [], []
    for was_welcome in (False, True, False, False):
        tried.append(prepared(dial))
        more.append(dial.has_untried_keys)
        if was_welcome:
            dial.welcomed()
        dial.failed()
    first, right = tried[:2]
    assert first != right
    assert tried[2:] == [right, first]  # it was restarted, with another key
    assert more == [True, False, True, False]


def test_keys_are_read_at_each_attempt_and_stay_when_they_break(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dial = open_dialer("tcp://h:1", files(tmp_path, "g"))
    old = prepared(dial)
    path = tmp_path / "gateways" / "g.pub"
    path.write_text("half")
    assert prepared(dial) == old
    (line,) = caplog.records
    assert (line.message, line.__dict__["file"]) == ("key file unreadable", path)
    new = zmq.curve_keypair()[0].decode()
    path.write_text(public_text(new))
    assert prepared(dial) == new


def test_a_first_attempt_without_keys_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tcp needs keys"):
        open_dialer("tcp://h:1", None)
    with pytest.raises(ConfigError, match=r"holds no \.pub file"):
        prepared(open_dialer("tcp://h:1", files(tmp_path)))
