"""A worker whose gateway does not want it."""

import logging

import pytest

from protocol.errors import EXIT_CONFIG
from protocol.wire import messages as m
from tests.worker.test_sleep import Stage, stage

__all__ = ["stage"]


def test_a_worker_that_is_refused_says_why_and_does_not_come_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        stage.gateway.send(m.Refused(reason="a worker named 'w' is alive"))
        stage.until(lambda: stage.code is not None)
    assert stage.code == EXIT_CONFIG
    assert "refused by the gateway: a worker named 'w' is alive" in caplog.text
