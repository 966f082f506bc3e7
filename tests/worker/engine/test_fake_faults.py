"""The fake backend does once what a file of its worker's name orders."""

import time
from pathlib import Path

import pytest

from worker.engine.fake.faults import FAULTS_VARIABLE, ProcessFaults


def test_does_nothing_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "w").write_text("raise")
    monkeypatch.delenv(FAULTS_VARIABLE, raising=False)
    ProcessFaults("w").inject()


def test_obeys_an_order_once_and_only_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path))
    faults, other = ProcessFaults("host/w"), ProcessFaults("host/v")
    (tmp_path / "host_w").write_text("raise")
    other.inject()
    with pytest.raises(RuntimeError, match="asked to raise"):
        faults.inject()
    faults.inject()
    assert list(tmp_path.iterdir()) == []


def test_a_broken_one_stays_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path))
    faults = ProcessFaults("w")
    (tmp_path / "w").write_text("break")
    faults.inject()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            faults.inject()


def test_an_order_for_each_load_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path))
    (tmp_path / "w.loading").write_text("raise")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="asked to raise"):
            ProcessFaults("w").inject_at_load()


def test_becomes_slow_for_good(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path))
    faults = ProcessFaults("w")
    (tmp_path / "w").write_text("slow 0.02")
    faults.inject()
    start_s = time.monotonic()
    faults.inject()
    assert time.monotonic() - start_s >= 0.02


def test_refuses_an_unknown_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(FAULTS_VARIABLE, str(tmp_path))
    (tmp_path / "w").write_text("dance")
    with pytest.raises(RuntimeError, match="knows no fault dance"):
        ProcessFaults("w").inject()
