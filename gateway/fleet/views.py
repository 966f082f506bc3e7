"""What the admin API shows: pure functions from what is known to JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.metrics.view import WorkerView
from protocol.process.control import FleetReport, ProcessReport


def worker_rows(
    views: Iterable[WorkerView], report: FleetReport, rates: Mapping[str, float], own_host: str
) -> list[dict[str, Any]]:
    """List all workers: those that are connected, and those that the supervisor starts."""
    views = tuple(views)
    processes = {running.name: running for running in report.processes if running.model}
    rows = {view.name: _connected(view, processes.get(view.name), rates) for view in views}
    for view in away(views, report):
        rows[view.name] = _connected(view, processes[view.name], {})
    for name, row in rows.items():
        host, slash, _ = name.rpartition("/")
        row["host"] = host if slash else own_host if name in processes else ""
    return [rows[name] for name in sorted(rows)]


def away(views: Iterable[WorkerView], report: FleetReport) -> list[WorkerView]:
    """List the workers that the supervisor starts and that are not among those connected."""
    names = {view.name for view in views}
    return [
        _away(process)
        for process in report.processes
        if process.model and process.name not in names
    ]


def _away(process: ProcessReport) -> WorkerView:
    # Its process has loaded the model, but it is stuck, or its connection has ended.
    state = "disconnected" if process.state == "ready" else process.state
    return WorkerView(name=process.name, model=process.model, state=state, n_slots=0, n_busy=0)


def _connected(
    view: WorkerView, process: ProcessReport | None, rates: Mapping[str, float]
) -> dict[str, Any]:
    row = {
        "name": view.name,
        "model": view.model,
        "state": view.state,
        "is_supervised": process is not None,
        "n_slots": view.n_slots,
        "n_busy": view.n_busy,
        "n_waiting": view.n_waiting,
        "tokens_per_s": round(rates.get(view.name, 0.0), 1),
        "is_ejected": view.is_ejected,
        **_process(process),
    }
    if process is not None and process.state in ("leaving", "drained", "quarantined"):
        row["state"] = process.state
    return row


def _process(process: ProcessReport | None) -> dict[str, Any]:
    if process is None:
        return {"pid": 0, "n_restarts": None, "progress": None, "retry_s": None, "why": ""}
    return {
        "pid": process.pid,
        "n_restarts": process.n_restarts,
        "progress": process.progress if process.state == "starting" else None,
        "retry_s": process.retry_s or None,
        "why": process.why,
    }


def gateway_rows(report: FleetReport, own_pid: int) -> list[dict[str, Any]]:
    """List the gateways of this host; without a supervisor this one alone is known."""
    rows = [
        {
            "name": process.name,
            "state": process.state,
            "pid": process.pid,
            "n_restarts": process.n_restarts,
            "is_this": process.pid == own_pid,
        }
        for process in report.processes
        if not process.model
    ]
    alone = {"name": "gateway", "state": "ready", "pid": own_pid, "n_restarts": None}
    return rows or [{**alone, "is_this": True}]
