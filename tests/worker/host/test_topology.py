"""Reading a machine: trees of /sys and /proc as Linux writes them."""

import os
from pathlib import Path

import pytest

from tests.worker.hosts import write
from worker.host.topology import bind, free_memory, group_memory, quarter_of_memory, read_host

CPU = "sys/devices/system/cpu"


def tree(root: Path, **files: str) -> Path:
    return write(root, {CPU + "/online": "0-7\n", **files})


def test_cores_and_nodes_are_read(tmp_path: Path) -> None:
    files = {
        f"{CPU}/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}\n" for i in range(8)
    }
    files |= {
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        "sys/devices/system/node/node2/cpulist": "\n",
    }
    host = read_host(tree(tmp_path, **files), frozenset(range(1, 8)))
    assert host.nodes == (0, 1)
    assert host.n_cores == 4
    assert host.n_online == 8
    assert [cpu.core for cpu in host.cpus] == [1, 2, 3, 0, 1, 2, 3]
    assert not host.has_gpu


def test_without_files_every_cpu_is_a_core(tmp_path: Path) -> None:
    host = read_host(tmp_path, frozenset({0, 1, 2}))
    assert (host.n_cores, host.nodes, host.n_online, host.quota) == (3, (0,), 3, 0.0)


def test_slow_cores_and_gpus_are_seen(tmp_path: Path) -> None:
    files = {"sys/devices/cpu_atom/cpus": "4-7\n", "dev/nvidia0": ""}
    host = read_host(tree(tmp_path, **files), frozenset(range(8)))
    assert [cpu.number for cpu in host.cpus if cpu.is_efficient] == [4, 5, 6, 7]
    assert host.has_gpu


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, 0.0),
        ({"sys/fs/cgroup/cpu.max": "nonsense\n"}, 0.0),
        (
            {
                "proc/self/cgroup": "0::/system.slice/pool.service\n",
                "sys/fs/cgroup/system.slice/pool.service/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/system.slice/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.0,
        ),
    ],
)
def test_the_tightest_quota_counts(tmp_path: Path, files: dict[str, str], quota: float) -> None:
    assert read_host(tree(tmp_path, **files), frozenset(range(8))).quota == quota


GROUP = "sys/fs/cgroup/"
MEMINFO = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"}
LIMIT = {
    f"{GROUP}memory.max": "1000\n",
    f"{GROUP}memory.current": "700\n",
    f"{GROUP}memory.stat": "anon 1\ninactive_file 300\n",
}
OLD_LIMIT = {
    "proc/self/cgroup": "4:memory:/a\n",
    f"{GROUP}memory/a/memory.limit_in_bytes": "1000\n",
    f"{GROUP}memory/a/memory.usage_in_bytes": "900\n",
    f"{GROUP}memory/memory.limit_in_bytes": "9223372036854771712\n",
}


@pytest.mark.parametrize(
    ("files", "free", "allowed", "both"),
    [
        ({}, 0, None, 0),
        (MEMINFO, 2048 * 1024, None, 2048 * 1024),
        (MEMINFO | LIMIT, 2048 * 1024, 600, 600),
        (MEMINFO | OLD_LIMIT, 2048 * 1024, 100, 100),
        (MEMINFO | {f"{GROUP}memory.max": "max\n"}, 2048 * 1024, None, 2048 * 1024),
        (LIMIT, 0, 600, 0),
    ],
)
def test_memory_of_host_and_group_is_read(
    tmp_path: Path, files: dict[str, str], free: int, allowed: int | None, both: int
) -> None:
    write(tmp_path, files)
    assert free_memory(tmp_path) == free
    assert group_memory(tmp_path) == allowed
    assert read_host(tmp_path, frozenset({0})).free_memory == both


@pytest.mark.parametrize(
    ("files", "quarter"),
    [
        ({}, 0),
        (MEMINFO, 9 * 256),
        (MEMINFO | LIMIT, 250),
        (MEMINFO | OLD_LIMIT, 250),
        (MEMINFO | {f"{GROUP}memory.max": "max\n"}, 9 * 256),
        (MEMINFO | {f"{GROUP}memory.max": "10000000\n"}, 9 * 256),
    ],
)
def test_a_quarter_of_the_memory_is_that_of_host_or_group(
    tmp_path: Path, files: dict[str, str], quarter: int
) -> None:
    write(tmp_path, files)
    assert quarter_of_memory(tmp_path) == quarter


def test_this_machine_can_be_read() -> None:
    host = read_host()
    assert 1 <= host.n_cores <= len(host.cpus) <= host.n_online


def test_a_process_is_kept_on_its_cpus(caplog: pytest.LogCaptureFixture) -> None:
    before = os.sched_getaffinity(0)
    first = min(before)
    try:
        assert bind(str(first)) == str(first)
        assert os.sched_getaffinity(0) == {first}
        assert [bind(cpus) for cpus in ("all", "", f"{first},1023")] == ["all", "", f"{first},1023"]
        assert os.sched_getaffinity(0) == {first}
        assert not caplog.records
        assert bind("1020-1023") == "all"  # as llama-server, which goes on
        assert os.sched_getaffinity(0) == {first}
        (line,) = caplog.records
        assert vars(line)["cause"] == f"this process may use only {first}"
    finally:
        os.sched_setaffinity(0, before)
