"""The admin API, `/admin/...`: state of the pool, workers out of service, rolling changes."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.api.fields.options import optional_string, read_flag, read_object, read_text
from gateway.fleet.supervisor_link import SupervisorLink
from gateway.fleet.views import gateway_rows, worker_rows
from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import RequestRefused, json_response, success_response
from gateway.metrics.view import WorkerView
from gateway.routes.service import Service
from protocol.config.rollout_config import GoldenConfig
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.process.control import (
    AbortOrder,
    AdminOrder,
    RolloutOrder,
    WorkerOrder,
    WorkerVerb,
    only_one_serves,
)
from protocol.version import version

_SURGES = ("auto", "on", "off")
_SERVING = ("ready", "sleeping")
"""States of workers that take tasks."""
_ON_HOST = (
    "Naming a configuration file or options for the workers is only possible on the host of the "
    "pool, over the socket in its runtime directory"
)


class FleetEndpoints:
    """Every endpoint needs an admin; see `gateway/http/origin/auth.py`."""

    def __init__(self, service: Service, supervisor: SupervisorLink) -> None:
        self._service = service
        self._supervisor = supervisor

    async def status(self, request: Request) -> Response:
        """Return everything that `llamapool status` shows."""
        pool, report = self._service.pool, self._supervisor.report
        return json_response(
            {
                "version": version(),
                "host": os.uname().nodename,
                "status": self._service.health().status,
                "workers": self._workers(),
                "gateways": gateway_rows(report, os.getpid()),
                "queue": dict(pool.status.queue_depths()),
                "n_quarantined": pool.status.n_quarantined(),
                "rollout": asdict(report.rollout),
            }
        )

    async def workers(self, request: Request) -> Response:
        """List the workers."""
        return json_response({"workers": self._workers()})

    def _workers(self) -> list[dict[str, Any]]:
        pool, now = self._service.pool, time.monotonic()
        views = pool.status.workers()
        rates = self._service.metrics.rates
        by_name = {view.name: rates.rate(view.name, now) for view in views}
        return worker_rows(views, self._supervisor.report, by_name, os.uname().nodename)

    async def drain(self, request: Request) -> Response:
        """Take a worker out of service: its streams continue at other workers, and it ends."""
        return await self._order_worker(request, WorkerVerb.DRAIN)

    async def undrain(self, request: Request) -> Response:
        """Start a worker now that was drained, or that died and waits."""
        return await self._order_worker(request, WorkerVerb.UNDRAIN)

    async def _order_worker(self, request: Request, verb: WorkerVerb) -> Response:
        body = await self._service.read_order(request.scope, request.receive, "WorkerOrder")
        name, force = read_text(body, "worker"), read_flag(body, "force")
        if not name:
            raise InvalidRequest("Field 'worker': must name a worker", param="worker")
        elsewhere = tuple({worker.model for worker in self._serving() if not self._is_own(worker)})
        order = WorkerOrder(id=0, verb=verb, worker=name, force=force, served_elsewhere=elsewhere)
        try:
            await self._order(request, lambda number: replace(order, id=number))
        except TaskError as error:
            is_remote = error.code in (ErrorCode.NOT_FOUND, ErrorCode.NOT_SUPPORTED)
            worker = self._service.pool.status.find_worker(name)
            if not is_remote or worker is None:
                raise
            self._order_remote(worker, verb, force=force)
        return success_response()

    def _serving(self) -> list[WorkerView]:
        """Return the workers that take tasks, of all hosts."""
        workers = self._service.pool.status.workers()
        return [worker for worker in workers if worker.state in _SERVING]

    def _is_own(self, worker: WorkerView) -> bool:
        """Whether this gateway's supervisor has started a worker."""
        return any(process.name == worker.name for process in self._supervisor.report.processes)

    def _order_remote(self, worker: WorkerView, verb: WorkerVerb, *, force: bool) -> None:
        """Ask a worker that others started to leave; its own supervisor may start it again."""
        name, model = worker.name, worker.model
        if verb is WorkerVerb.UNDRAIN:
            raise InvalidRequest(
                f"worker '{name}' was not started by this supervisor: start it on its own host",
                param="worker",
            )
        others = [other for other in self._serving() if other.name != name]
        if not force and not any(other.model == model for other in others):
            raise InvalidRequest(only_one_serves(name, model))
        self._service.pool.drain_worker(name)

    async def show_rollout(self, request: Request) -> Response:
        """Return the rolling change that runs, or the last one."""
        return json_response(asdict(self._supervisor.report.rollout))

    async def start_rollout(self, request: Request) -> Response:
        """Begin a rolling change; answers once it has started."""
        body = await self._service.read_order(request.scope, request.receive, "Rollout")
        order = _rollout(body)
        if (order.config or order.options) and not request.scope["is_operator"]:
            raise RequestRefused(403, _ON_HOST, "permission_error")
        await self._order(request, lambda number: replace(order, id=number))
        return success_response(202)

    async def abort_rollout(self, request: Request) -> Response:
        """Stop the rolling change and roll it back; answers once that has started."""
        await self._order(request, lambda number: AbortOrder(id=number))
        return success_response(202)

    async def _order(self, request: Request, make: Callable[[int], AdminOrder]) -> None:
        await guarded(self._supervisor.order(make), disconnected(request.receive))


def _rollout(body: dict[str, Any]) -> RolloutOrder:
    """Read the body of a rolling change; raises `InvalidRequest` that names the field."""
    surge = read_text(body, "surge") or "auto"
    if surge not in _SURGES:
        raise InvalidRequest("Field 'surge': must be auto, on or off", param="surge")
    golden = [] if body.get("golden") is None else body["golden"]
    if not isinstance(golden, list):
        raise InvalidRequest("Field 'golden': must be an array", param="golden")
    return RolloutOrder(
        id=0,
        config=read_text(body, "config"),
        options=dict(read_object(body, "options")),
        golden=tuple(_golden(entry, index) for index, entry in enumerate(golden)),
        only_changed=read_flag(body, "only_changed"),
        surge=surge,
    )


def _golden(value: Any, index: int) -> GoldenConfig:
    path = f"golden[{index}]"
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        raise InvalidRequest(f"Field '{path}.prompt': must be a string", param=f"{path}.prompt")
    for name in value:
        if name not in ("prompt", "answer"):
            raise InvalidRequest(f"Field '{path}.{name}' is unknown", param=f"{path}.{name}")
    answer = optional_string(value.get("answer"), f"{path}.answer")
    return GoldenConfig(prompt=value["prompt"], answer=answer)
