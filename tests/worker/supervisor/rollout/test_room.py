"""Whether a second worker fits beside the first."""

from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from tests.worker.hosts import flat
from worker.host import child
from worker.host.child import ChildOutcome
from worker.supervisor.rollout import room
from worker.supervisor.rollout.room import MemoryNeed, fits, free_device_memory, need_of

GIB = 1 << 30


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + bytes(3 << 20))
    return str(path)


def test_a_mapped_file_that_another_worker_has_counts_once(model: str) -> None:
    config = WorkerConfig(model=model, use_mmap=True, n_gpu_layers=0)
    alone = need_of(config, flat(4), frozenset())
    shared = need_of(config, flat(4), frozenset({model}))
    assert alone.host - shared.host == Path(model).stat().st_size
    assert alone.device == 0


def test_a_file_that_is_read_counts_for_each(model: str) -> None:
    config = WorkerConfig(model=model, use_mmap=False, n_gpu_layers=0)
    need = need_of(config, flat(4), frozenset({model}))
    assert need == need_of(config, flat(4), frozenset())


def test_on_a_gpu_the_weights_need_its_memory(model: str) -> None:
    need = need_of(WorkerConfig(model=model, devices="1"), flat(4), frozenset())
    assert need.host == 0
    assert need.device > Path(model).stat().st_size
    assert need.devices == "1"


def test_the_fake_backend_needs_none() -> None:
    assert fits(need_of(WorkerConfig(backend="fake"), flat(4), frozenset()))


@pytest.mark.parametrize(("free", "expected"), [(2 * GIB, True), (GIB // 2, False), (0, False)])
def test_the_host_must_have_it_free(
    monkeypatch: pytest.MonkeyPatch, free: int, expected: bool
) -> None:
    monkeypatch.setattr(room, "usable_memory", lambda: free)
    assert fits(MemoryNeed(host=GIB)) is expected


@pytest.mark.parametrize(
    ("devices", "free"), [("", 5), ("0", 2), ("1", 3), ("0,1", 5), ("7", 0), ("GPU-1f", 0)]
)
def test_the_devices_of_the_worker_count(
    monkeypatch: pytest.MonkeyPatch, devices: str, free: int
) -> None:
    facts = {"names": ["a", "b"], "fault": "", "free": {"0": 2, "1": 3}}
    monkeypatch.setattr(child, "run", lambda *_: ChildOutcome(0, facts))
    assert free_device_memory(devices) == free


def test_a_driver_that_hangs_counts_as_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "run", lambda *_: ChildOutcome(None))
    assert free_device_memory("0") == 0
    assert not fits(MemoryNeed(device=1, devices="0"))


def test_the_reader_of_the_driver_runs_as_a_child() -> None:
    assert free_device_memory("") >= 0
