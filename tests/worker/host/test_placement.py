"""Threads and places: made-up machines, and what each worker gets of them."""

import pytest

from protocol.config.config import WorkerConfig
from protocol.config.options import table as options
from protocol.cpulist import format_cpus, parse_cpus, parse_mask
from protocol.errors import ConfigError
from tests.worker.hosts import flat, nodes
from worker.host.placement import Cpu, Host, Placement, describe, place
from worker.host.process_environment import process_environment


def placed(host: Host, *workers: WorkerConfig) -> list[Placement]:
    return list(place(host, workers, {}))


def alike(n: int, **fields: object) -> list[WorkerConfig]:
    return [WorkerConfig(**fields) for _ in range(n)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "n_workers", "threads"),
    [
        (flat(8), 1, 8),
        (flat(8), 3, 2),
        (flat(2), 5, 1),
        (nodes(1, 4, threads=2), 1, 4),
        (flat(64, quota=2.5), 1, 2),
        (flat(64, quota=0.5), 1, 1),
        (flat(64, quota=6), 2, 3),
        (flat(4, quota=16), 1, 4),
    ],
)
def test_the_cores_granted_are_divided_among_the_workers(
    host: Host, n_workers: int, threads: int
) -> None:
    for placement in placed(host, *alike(n_workers)):
        assert (placement.n_threads, placement.n_threads_batch) == (threads, threads)


def test_slow_cores_of_a_hybrid_machine_are_not_counted() -> None:
    fast = [Cpu(number=i, core=i // 2 * 2) for i in range(8)]
    slow = [Cpu(number=i, core=i, is_efficient=True) for i in range(8, 12)]
    (placement,) = placed(Host(cpus=(*fast, *slow), n_online=12), WorkerConfig())
    assert placement.n_threads == 4
    (placement,) = placed(Host(cpus=tuple(slow), n_online=12), WorkerConfig())
    assert placement.n_threads == 4


def test_threads_that_are_given_stand_and_batches_follow_them() -> None:
    placement, two = placed(
        flat(8), WorkerConfig(n_threads=3), WorkerConfig(n_threads=2, n_threads_batch=6)
    )
    assert (placement.n_threads, placement.n_threads_batch) == (3, 3)
    assert (two.n_threads, two.n_threads_batch) == (2, 6)
    assert "threads: as given" in placement.why


def test_threads_wait_awake_only_while_each_has_a_core() -> None:
    assert [placement.poll for placement in placed(flat(4), *alike(2))] == [50, 50]
    crowded = placed(flat(4), *alike(2, n_threads=4))
    assert [placement.poll for placement in crowded] == [0, 0]
    assert "8 threads share 4 cores" in crowded[0].why
    assert [placement.poll for placement in placed(flat(1), *alike(2))] == [0, 0]
    assert [placement.poll for placement in placed(flat(4), *alike(2, n_threads=4, poll=7))] == [
        7,
        7,
    ]


def test_on_one_node_nobody_is_pinned() -> None:
    for placement in placed(flat(8), *alike(2)):
        assert (placement.cpus, placement.numa) == ("all", "none")


def test_one_worker_spreads_over_all_nodes() -> None:
    (placement,) = placed(nodes(2, 16), WorkerConfig())
    assert (placement.n_threads, placement.cpus, placement.numa) == (32, "all", "distribute")


def test_one_worker_in_a_part_of_a_machine_is_left_to_the_kernel() -> None:
    for host in (nodes(2, 16, quota=8), nodes(2, 16, n_online=64)):
        (placement,) = placed(host, WorkerConfig())
        assert (placement.cpus, placement.numa) == ("all", "none")
        assert "part of the machine" in placement.why


def test_one_worker_whose_threads_fit_into_a_node_stays_there() -> None:
    (placement,) = placed(nodes(2, 16, threads=2), WorkerConfig(n_threads=12))
    assert (placement.n_threads, placement.cpus, placement.numa) == (12, "0-15,32-47", "none")


def test_as_many_workers_as_nodes_get_one_each() -> None:
    found = placed(nodes(2, 16, threads=2), *alike(2))
    assert [placement.cpus for placement in found] == ["0-15,32-47", "16-31,48-63"]
    assert {(placement.n_threads, placement.numa, placement.poll) for placement in found} == {
        (16, "none", 50)
    }
    assert "NUMA node 1, so that its memory is near" in found[1].why


def test_more_workers_than_nodes_share_them_evenly() -> None:
    found = placed(nodes(2, 16), *alike(3))
    assert [(placement.cpus, placement.n_threads) for placement in found] == [
        ("0-15", 8),
        ("16-31", 16),
        ("0-15", 8),
    ]


def test_fewer_workers_than_nodes_get_neighbours() -> None:
    found = placed(nodes(4, 8), *alike(2))
    assert [(placement.cpus, placement.n_threads) for placement in found] == [
        ("0-15", 16),
        ("16-31", 16),
    ]


def test_a_quota_bounds_the_threads_on_a_node() -> None:
    found = placed(nodes(2, 16, quota=8), *alike(2))
    assert [(placement.cpus, placement.n_threads) for placement in found] == [
        ("0-15", 4),
        ("16-31", 4),
    ]


def test_nodes_of_unequal_size_give_what_they_have() -> None:
    cpus = [Cpu(number=i, core=i, node=0 if i < 12 else 1) for i in range(16)]
    found = placed(Host(cpus=tuple(cpus), n_online=16), *alike(2))
    assert [(placement.cpus, placement.n_threads) for placement in found] == [
        ("0-11", 12),
        ("12-15", 4),
    ]


@pytest.mark.parametrize("n_workers", [1, 2])
def test_workers_on_gpus_go_anywhere(n_workers: int) -> None:
    for placement in placed(nodes(2, 16, has_gpu=True), *alike(n_workers)):
        assert (placement.cpus, placement.numa) == ("all", "none")
        assert "GPU" in placement.why
    (placement,) = placed(nodes(2, 16), WorkerConfig(devices="0"))
    assert placement.cpus == "all"
    (placement,) = placed(nodes(2, 16, has_gpu=True), WorkerConfig(n_gpu_layers=0))
    assert placement.numa == "distribute"


def test_what_a_person_says_of_the_place_stands() -> None:
    host = nodes(2, 16)
    numa, none, cpus = placed(
        host, WorkerConfig(numa="isolate"), WorkerConfig(numa="none"), WorkerConfig(cpus="0-1,40")
    )
    assert (numa.numa, numa.cpus) == ("isolate", "all")
    assert (none.numa, none.cpus) == ("none", "all")
    assert (cpus.numa, cpus.cpus, cpus.n_threads) == ("none", "0-1,40", 2)


def test_what_was_chosen_is_chosen_again() -> None:
    for host in (flat(8), nodes(2, 16), nodes(4, 8, threads=2)):
        for n in (1, 2, 3, 5):
            first = placed(host, *alike(n))
            again = [
                WorkerConfig(
                    n_threads=placement.n_threads,
                    n_threads_batch=placement.n_threads_batch,
                    cpus=placement.cpus,
                    numa=placement.numa,
                    poll=placement.poll,
                    use_mmap=not placement.reads,
                )
                for placement in first
            ]
            second = placed(flat(1), *again)
            assert [(o.cpus, o.numa, o.n_threads, o.poll) for o in first] == [
                (o.cpus, o.numa, o.n_threads, o.poll) for o in second
            ]


def test_workers_that_got_the_same_are_told_in_one_line() -> None:
    names = ["a", "b", "c"]
    assert len(describe(names, place(flat(6), alike(3), {}))) == 1
    lines = describe(names, place(nodes(2, 4), alike(3), {}))
    assert [line.partition(" ")[0] for line in lines] == ["workers=a,c", "workers=b"]
    assert "threads=2 threads_batch=2 cpus=0-3 numa=none poll=50 " in lines[0]


def test_a_machine_says_what_it_is() -> None:
    assert str(flat(4)) == "4 of 4 CPUs, 4 cores"
    assert str(nodes(2, 2, threads=2, quota=2.5)) == (
        "8 of 8 CPUs, 4 cores, 2 NUMA nodes, a quota of 2.5 cores"
    )


@pytest.mark.parametrize("text", ["0", "0-3,8", "1-2,4-5,7", "all"])
def test_lists_of_cpus_are_read_and_written(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == ("" if text == "all" else text)


@pytest.mark.parametrize("text", ["", "x", "3-1", "1,,2", "0-", "-1", "99999", "0x3", "1-2-3"])
def test_other_lists_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="cpus"):
        parse_cpus(text)


@pytest.mark.parametrize(
    ("mask", "cpus"),
    [("0x3", "0-1"), ("f0", "4-7"), ("101", "0,8"), ("0X8", "3"), ("0", "all"), ("", "all")],
)
def test_masks_become_lists(mask: str, cpus: str) -> None:
    assert parse_mask(mask) == cpus


@pytest.mark.parametrize("mask", ["zz", "-1", "1_0", "f" * 300])
def test_other_masks_are_refused(mask: str) -> None:
    with pytest.raises(ValueError, match="hexadecimal"):
        parse_mask(mask)


def test_llama_servers_options_say_where_and_how() -> None:
    said = {"LLAMA_ARG_CPU_MASK": "0xf0", "LLAMA_ARG_POLL": "0", "LLAMA_ARG_NUMA": "none"}
    assert options.from_environ(said) == {
        "worker.cpus": "4-7",
        "worker.poll": 0,
        "worker.numa": "none",
    }
    assert options.from_environ({"LLAMA_ARG_CPU_RANGE": "2-5"}) == {"worker.cpus": "2-5"}


# ---- OpenMP -----------------------------------------------------------------------------------


def test_openmp_waits_as_long_as_poll_says() -> None:
    env = process_environment(WorkerConfig(n_threads=4, n_threads_batch=6, poll=50), {})
    assert env == {
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "3000",
        "OMP_NUM_THREADS": "6",
        "OMP_PROC_BIND": "false",
    }
    assert process_environment(WorkerConfig(poll=0), {})["GOMP_SPINCOUNT"] == "0"


def test_openmp_of_the_environment_stands_but_threads_are_never_bound() -> None:
    said = {"OMP_WAIT_POLICY": "active", "OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "3"}
    env = process_environment(WorkerConfig(n_threads=4, poll=50), said)
    assert env == {
        "OMP_WAIT_POLICY": "active",
        "OMP_NUM_THREADS": "3",
        "OMP_PROC_BIND": "false",
    }
    assert process_environment(WorkerConfig(), {"GOMP_SPINCOUNT": "9"})["GOMP_SPINCOUNT"] == "9"
