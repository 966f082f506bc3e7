"""A worker whose gateway does not want it."""

import logging
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import EXIT_CONFIG
from protocol.wire import messages as m
from tests.worker.test_sleep import Stage, stage
from worker.process import WorkerProcess

__all__ = ["stage"]


def test_a_worker_that_is_refused_says_why_and_does_not_come_back(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL):
        stage.gateway.send(m.Refused(reason="a worker named 'w' is alive"))
        stage.until(lambda: stage.code is not None)
    assert stage.code == EXIT_CONFIG
    assert "refused by the gateway: a worker named 'w' is alive" in caplog.text


@pytest.mark.parametrize(("mode", "is_told"), [(0o644, True), (0o600, False)])
def test_a_secret_key_that_others_may_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, *, is_told: bool
) -> None:
    (secret := tmp_path / "w.key").write_text("")
    secret.chmod(mode)
    config = WorkerConfig(
        name="w", backend="fake", curve_key_file=str(secret), gateway_keys=(str(tmp_path),)
    )
    with caplog.at_level(logging.WARNING):
        WorkerProcess(config).close()
    assert ("secret key readable by others" in caplog.text) is is_told
