"""The supervisor over scripted children: real processes and signals, no model, no gateway."""

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import Process, marked, python
from tests.fakes.full_socket import fill

pytestmark = pytest.mark.slow

DRIVER = textwrap.dedent(
    """
    import json, os, sys
    from pathlib import Path
    from unittest.mock import Mock
    from protocol.process import logs
    from protocol.process.control import RolloutReport
    from protocol.process.notify import Notifier
    from protocol.process.parent_death import PARENT_VARIABLE
    from worker.supervisor.children.launch import Launch
    from worker.supervisor.children.restart_policy import RestartPolicy
    from worker.supervisor.control import ControlServer
    from worker.supervisor.orders import Orders
    from worker.supervisor.supervisor import Supervisor, SupervisorSettings
    from worker.supervisor.terminal import Console

    plan = json.loads(sys.argv[1])
    console = Console(sys.stderr.fileno(), is_terminal=sys.stderr.isatty())
    logs.configure("supervisor", stream=console)
    env = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    os.makedirs(plan["scratch"], exist_ok=True)
    launches = [
        Launch(name=name, argv=(plan["python"].get(name, sys.executable), "-c", plan["child"],
                                kind, plan["scratch"]),
               env=env, model="" if name == "gateway" else "m",
               watchdog_s=plan["watchdog_s"], drain_timeout_s=plan["drain_timeout_s"])
        for name, kind in plan["children"].items()
    ]
    on_demand = plan.get("on_demand")
    fixed = Mock(models=on_demand, keeps_going=bool(on_demand), drained=frozenset())
    fixed.deadlines = fixed.greeting = list
    fixed.report = lambda now: RolloutReport()
    control = ControlServer(Path(plan["scratch"], "control.sock"))
    settings = SupervisorSettings(launches=launches, runtime_dir=Path(plan["scratch"]),
                        orders=Orders(control, fixed),
                        reread=list,
                        policy=RestartPolicy(**plan["policy"]))
    sys.exit(Supervisor(settings, console, Notifier.from_environ()).run())
    """
)

CHILD = textwrap.dedent(
    """
    import os, signal, sys, time
    from pathlib import Path
    from protocol.process.notify import Notifier
    from protocol.process.parent_death import die_with_parent

    die_with_parent()
    kind, scratch = sys.argv[1], Path(sys.argv[2])
    tell = Notifier.from_environ()
    once = scratch / f"{kind}.once"
    first = not once.exists()
    once.touch()
    if kind == "config":
        tell.send(X_REASON="the model is broken")
        sys.exit(78)
    if kind == "lacks-memory":  # it works, crashes, twice cannot load again, and works
        n = 1 + int(once.read_text() or 0)
        once.write_text(str(n))
        if n == 1:
            tell.send(READY=1, X_URL="http://127.0.0.1:1")
            os.kill(os.getpid(), signal.SIGABRT)
        if n < 4:
            tell.send(X_REASON="out of memory")
            sys.exit(78)
    if kind == "drained-once" and first:
        tell.send(READY=1, X_URL="http://127.0.0.1:1")
        tell.stopping()
        sys.exit(0)
    if kind == "exits-with-0":
        tell.send(READY=1, X_URL="http://127.0.0.1:1")
        sys.exit(0)
    if kind == "forger":
        print("2026-11-22T10:00:00.000Z ERROR supervisor forged", file=sys.stderr, flush=True)
    if kind == "logger":
        os.write(int(os.environ["LLAMAPOOL_LOG_FD"]), b"a line of its log\\n")
    if kind == "crash" or (kind == "crash-once" and first):
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGABRT)
    if kind == "illegal":
        os.kill(os.getpid(), signal.SIGILL)
    def leave(*_):
        print(f"{kind} leaves", file=sys.stderr, flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, (lambda *_: None) if kind == "stubborn" else leave)
    tell.progress(0.5)
    if kind != "loads-for-ever":
        tell.send(READY=1, X_URL="http://127.0.0.1:1")
    interval_s = 60 if kind == "stuck-once" and first else 0.05
    while True:
        time.sleep(interval_s)
        tell.watchdog()
    """
)

Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run a supervisor over children of the given kinds."""
    running: list[Process] = []

    def begin(*workers: str, gateway: str = "plain", **plan: Any) -> Process:
        children = {"gateway": gateway}
        children |= {f"w{i}": kind for i, kind in enumerate(workers, 1)}
        plan = {
            "child": CHILD,
            "children": children,
            "scratch": str(tmp_path),
            "watchdog_s": 30,
            "drain_timeout_s": 5,
            "policy": {"first_delay_s": 0.05},
            "python": {},
            **plan,
        }
        process = Process(python("-c", DRIVER, json.dumps(plan)))
        running.append(process)
        return process

    yield begin
    for process in running:
        process.close()


def test_says_where_it_is_once_everybody_is_ready(start: Start) -> None:
    process = start("plain", "plain")
    match = process.wait_for(r"ready url=(\S+) models=m n_workers=2")
    assert match[1] == "http://127.0.0.1:1"


@pytest.mark.parametrize("drain_timeout_s", [5, 1e308])
def test_sigterm_ends_the_gateway_first_and_leaves_nobody(
    start: Start, drain_timeout_s: float
) -> None:
    process = start("plain", "plain", gateway="gate", drain_timeout_s=drain_timeout_s)
    process.wait_for("ready url=")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.survivors() == []
    ends = [line for line in process.lines if line.endswith(' leaves"')]
    assert ends[0].endswith('standard error child=gateway line="gate leaves"')


def test_second_signal_ends_at_once_with_1(start: Start) -> None:
    process = start("plain", gateway="stubborn", drain_timeout_s=600)
    process.wait_for("ready url=")
    process.signal(signal.SIGINT)
    process.wait_for("draining signal=SIGINT")
    process.signal(signal.SIGINT)
    assert process.wait() == 1
    assert process.survivors() == []


def test_crashed_worker_comes_back_and_its_last_words_are_told(start: Start) -> None:
    process = start("crash-once")
    process.wait_for('WARNING supervisor standard error child=w1 line="last words"')
    process.wait_for(r"process died child=w1 cause=aborted retry_s=0\.05")
    process.wait_for("process ready child=w1")
    process.wait_for("ready url=")


def test_illegal_instruction_tells_how_to_rebuild(start: Start) -> None:
    process = start("illegal", "plain", policy={"max_deaths": 1})
    assert "GGML_NATIVE=OFF" in process.wait_for("process quarantined child=w1").string


def test_silent_worker_is_killed_and_replaced(start: Start) -> None:
    process = start("stuck-once", watchdog_s=1.0)
    process.wait_for(r"process makes no progress child=w1")
    process.wait_for(r"process died child=w1 cause=.stuck: no progress.")
    process.wait_for(r"process ready child=w1")


def test_who_was_stopped_together_with_the_supervisor_is_not_killed(start: Start) -> None:
    process = start("plain", watchdog_s=2.0)
    process.wait_for("ready url=")
    everybody = marked(process.mark)
    for number, pause_s in ((signal.SIGSTOP, 6.0), (signal.SIGCONT, 1.0)):
        for pid in everybody:
            os.kill(pid, number)
        time.sleep(pause_s)
    assert "process makes no progress" not in process.text
    assert "process died" not in process.text


def test_crash_loop_ends_in_quarantine_and_69(start: Start) -> None:
    process = start("crash", policy={"first_delay_s": 0.01, "max_deaths": 3})
    assert process.wait() == 69
    assert process.text.count(" process died ") == 2
    assert "process quarantined child=w1" in process.text
    assert process.survivors() == []


def test_quarantined_worker_leaves_the_others_alone(start: Start) -> None:
    process = start("crash", "plain", policy={"first_delay_s": 0.01, "max_deaths": 2})
    line = process.wait_for("process quarantined child=w1 cause=aborted retry_s=600").string
    assert "llamapool undrain" in line
    assert process.popen.poll() is None
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_quarantine_ends_and_the_worker_is_tried_again(start: Start) -> None:
    policy = {"first_delay_s": 0.01, "max_deaths": 1, "quarantine_s": 0.2}
    process = start("crash-once", "plain", policy=policy)
    process.wait_for("process quarantined child=w1")
    process.wait_for("process ready child=w1")


def test_a_process_that_cannot_be_started_has_died_like_any_other(
    start: Start, tmp_path: Path
) -> None:
    """Fault H11: a missing interpreter, or a fork that failed, ended the supervisor and all."""
    process = start("plain", "plain", python={"w1": str(tmp_path / "missing")})
    process.wait_for(
        r"process died child=w1 cause=.cannot be started: .*No such file.* retry_s=0\.05"
    )
    process.wait_for("process ready child=w2")
    (tmp_path / "missing").symlink_to(sys.executable)
    process.wait_for("process ready child=w1")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.survivors() == []


def test_a_drain_by_hand_is_no_death(start: Start) -> None:
    process = start("drained-once", policy={"first_delay_s": 0.01, "max_deaths": 1})
    process.wait_for("INFO supervisor process drained child=w1")
    process.wait_for("process ready child=w1")
    assert (
        "process died child=w1" not in process.text
        and "process quarantined child=w1" not in process.text
    )


def test_who_exits_with_0_unasked_has_died(start: Start) -> None:
    pool = start("exits-with-0", "plain")
    pool.wait_for("process died child=w1 .*ended by itself with exit code 0")
    pool.wait_for("process quarantined child=w1 .*ended by itself with exit code 0")


def test_what_is_written_beside_the_log_is_quoted(start: Start) -> None:
    process = start("forger", "logger")
    process.wait_for(
        "WARNING supervisor standard error child=w1 "
        'line="2026-11-22T10:00:00.000Z ERROR supervisor forged"'
    )
    process.wait_for_count("^a line of its log$", 1)  # it may have come first


def test_worker_that_cannot_be_configured_is_not_tried_again(start: Start) -> None:
    process = start("config")
    assert process.wait() == 78
    assert process.text.count("the model is broken") == 1
    assert 'process given up child=w1 cause="the model is broken"' in process.text


def test_a_worker_that_lacks_memory_after_a_crash_is_tried_again_until_it_has_it(
    start: Start,
) -> None:
    process = start("lacks-memory")
    process.wait_for("process died child=w1 cause=aborted")
    process.wait_for_count('process died child=w1 cause="out of memory"', 2)
    process.wait_for_count("process ready child=w1", 2)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_a_model_on_demand_that_cannot_work_any_more_is_given_up(start: Start) -> None:
    """Its client gets an error and may ask again."""
    process = start("lacks-memory", on_demand=True)
    process.wait_for('process given up child=w1 cause="out of memory"')
    assert process.text.count("process died child=w1") == 1


def test_a_gateway_that_has_worked_is_tried_again_until_it_can_work(start: Start) -> None:
    """Its file of keys may be written while it starts again."""
    process = start("plain", gateway="lacks-memory")
    process.wait_for_count('process died child=gateway cause="out of memory"', 2)
    process.wait_for_count("process ready child=gateway", 2)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


def test_gateway_that_cannot_be_configured_stops_everything(start: Start) -> None:
    process = start("plain", "loads-for-ever", gateway="config")
    assert process.wait() == 78
    assert process.survivors() == []


def test_dead_gateway_is_replaced_and_workers_stay(start: Start) -> None:
    process = start("plain", gateway="crash-once")
    process.wait_for("process died child=gateway")
    process.wait_for("process ready child=gateway")
    assert "process died child=w1" not in process.text


def test_sigterm_while_loading_ends_soon(start: Start) -> None:
    process = start("loads-for-ever")
    process.wait_for("process ready child=gateway")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert process.survivors() == []


def test_drain_that_takes_too_long_ends_with_1(start: Start) -> None:
    process = start("plain", gateway="stubborn", drain_timeout_s=-9.8)
    process.wait_for("ready url=")
    process.signal(signal.SIGTERM)
    assert process.wait() == 1
    assert "not ended in time children=gateway" in process.text
    assert process.survivors() == []


def test_kill_9_of_the_supervisor_leaves_nobody(start: Start) -> None:
    process = start("plain", "plain")
    process.wait_for("ready url=")
    assert len(marked(process.mark)) == 4
    process.signal(signal.SIGKILL)
    process.wait()
    assert process.survivors() == []


def test_reports_reach_systemd_also_after_its_socket_was_full(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "systemd.sock"))
        sock.settimeout(10)
        fill(tmp_path / "systemd.sock")
        plan = json.dumps(
            {
                "child": CHILD,
                "children": {"gateway": "plain", "w1": "plain", "w2": "loads-for-ever"},
                "scratch": str(tmp_path),
                "watchdog_s": 30,
                "drain_timeout_s": 5,
                "policy": {},
                "python": {},
            }
        )
        env = {"NOTIFY_SOCKET": str(tmp_path / "systemd.sock"), "WATCHDOG_USEC": "200000"}
        process = Process(python("-c", DRIVER, plan), env)
        try:
            process.wait_for("process ready child=w1")
            seen = ""
            while not ("READY=1" in seen and "WATCHDOG=1" in seen):
                seen += sock.recv(4096).decode() + "\n"
            assert "STATUS=running, 1 of 2 workers ready" in seen
            process.signal(signal.SIGTERM)
            while "STOPPING=1" not in seen:
                seen += sock.recv(4096).decode() + "\n"
            assert process.wait() == 0
        finally:
            process.close()
