"""GET endpoints about the server: health, properties, slots, models, metrics."""

import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from gateway.api.anthropic.models import VERSION_HEADER, page
from gateway.api.anthropic.models import model as claude_model
from gateway.api.llamacpp.views import (
    ServerFeatures,
    bare,
    models,
    props,
    router_props,
    slot,
    without_texts,
)
from gateway.http.disconnect import disconnected, guarded
from gateway.http.errors import Headers, json_response
from gateway.http.header_case import spelled_for
from gateway.http.origin.auth import require_admin
from gateway.pool.status import ModelState
from gateway.routes.service import Service, may_use
from gateway.siblings.host_metrics import HostMetrics
from protocol.errors import ErrorCode, TaskError, not_started

_NO_SLOT = "no slot available"
_RETRY: Headers = {"Retry-After": "1"}

_FAULTS: dict[str, tuple[int, str, str]] = {
    "loading model": (503, "Loading model", "unavailable_error"),
    "error": (500, "Model failed to load", "server_error"),
    "draining": (503, "The server is shutting down", "unavailable_error"),
}


class Admin:
    """Health, properties, slots, models and metrics."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._started_at = time.time()
        self._metrics = HostMetrics(service.metrics, service.pool.status, service.siblings)

    async def health(self, request: Request) -> Response:
        """Return the status with the slot counts of 2023 and 2024; the codes are llama-server's."""
        health = self._service.health()
        if health.status in _FAULTS:
            return _fault(health.status)
        shown: dict[str, Any] = {
            "status": health.status,
            "slots_idle": health.slots_idle,
            "slots_processing": health.slots_processing,
        }
        if "include_slots" in request.query_params and self._service.config.slots:
            rows = await self._slots(request.scope, None, legacy=False)
            shown["slots"] = [without_texts(row) for row in rows]
        is_full = health.status == _NO_SLOT and "fail_on_no_slot" in request.query_params
        return json_response(shown, 503 if is_full else 200, _RETRY if is_full else None)

    async def livez(self, request: Request) -> Response:
        """Answer as long as the event loop runs."""
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """Return whether new work is accepted."""
        status = self._service.health().status
        if status in ("ok", _NO_SLOT):
            return json_response({"status": "ready"})
        return json_response({"status": status}, 503, _RETRY)

    async def props(self, request: Request) -> Response:
        """Return the properties of a model, or of the pool if it has several and none is named."""
        service = self._service
        config, cards = service.config, service.ready_cards()
        model = request.query_params.get("model")
        if not model and service.models is not None:
            shown = router_props(cards, config.models_max, autoload=config.models_autoload)
            return json_response(shown)
        if model is None and len(cards) > 1:
            return json_response(router_props(cards))
        card = await service.card(model, request.scope, request.receive)
        features = ServerFeatures(
            slots=config.slots,
            metrics=config.metrics,
            props=config.props,
            ui_settings=orjson.loads(config.ui_config or "{}"),
            ui=config.ui,
        )
        pool = service.pool
        shown = props(
            card, pool.status.n_slots(card.name), features, pool.settings.system_prompt(card)
        )
        return json_response(
            shown | {"is_sleeping": pool.status.state(card.name) is ModelState.SLEEPING}
        )

    async def slots(self, request: Request) -> Response:
        """List the slots of all workers under global ids."""
        if not self._service.config.slots:
            raise not_started("slots endpoint", "`--slots`")
        self._service.ready_cards()
        if "fail_on_no_slot" in request.query_params and not self._service.pool.health().slots_idle:
            raise TaskError(ErrorCode.UNAVAILABLE, _NO_SLOT)
        model = request.query_params.get("model") or None
        if model is not None:
            model = (await self._service.card(model, request.scope, request.receive)).name
        legacy = "legacy" in request.query_params
        return json_response(await self._slots(request.scope, model, legacy=legacy))

    async def _slots(
        self, scope: Scope, model: str | None, *, legacy: bool
    ) -> list[dict[str, Any]]:
        """Return the slots; only admins see the tasks of other tenants."""
        pool = self._service.pool
        shown = []
        for report, card in await pool.calls.slots(model):
            if not may_use(scope, card.name, *card.aliases):
                continue
            tenant = None if report.is_foreign else pool.status.tenant_of(report.task_id)
            is_own = bool(scope["key"]) and tenant == scope["tenant"]
            may_see = scope["is_admin"] or is_own
            shown.append(slot(report if may_see else bare(report), card, legacy=legacy))
        return shown

    async def models(self, request: Request) -> Response:
        """List the models."""
        manager = self._service.models
        if manager is not None and request.query_params.get("reload"):
            require_admin(request.scope)
            await guarded(manager.reload(), disconnected(request.receive))
        listing = self._listing(request.scope)
        if VERSION_HEADER in request.headers:
            listing = page(listing["data"], request.query_params)
        return json_response(listing)

    async def model(self, request: Request) -> Response:
        """Return one entry of the list, by name or alias."""
        name = request.path_params["id"]
        for listed in self._listing(request.scope, name)["data"]:
            if name == listed["id"] or name in listed["aliases"]:
                is_anthropic = VERSION_HEADER in request.headers
                return json_response(claude_model(listed) if is_anthropic else listed)
        raise TaskError(ErrorCode.NOT_FOUND, f"model '{name}' not found", param="model")

    def _listing(self, scope: Scope, name: str | None = None) -> dict[str, Any]:
        """List the models that the key of a request may use; with a name, not all others."""
        if self._service.models is not None:
            listing = self._service.models.listing(name)
            data = [
                entry for entry in listing["data"] if may_use(scope, entry["id"], *entry["aliases"])
            ]
            return listing | {"data": data}
        cards, pool = self._service.ready_cards(), self._service.pool
        cards = tuple(shown for shown in cards if may_use(scope, shown.name, *shown.aliases))
        states = {card.name: pool.status.state(card.name) for card in cards}
        return models(cards, self._service.created, states)

    async def metrics(self, request: Request) -> Response:
        """Write the metrics for Prometheus."""
        if not self._service.config.metrics:
            raise not_started("metrics endpoint", "`--metrics`")
        headers = {
            "Content-Type": "text/plain; version=0.0.4",  # as media_type it would get a charset
        }
        text = await self._metrics.render()
        response = Response(text, 200, headers)
        started = (b"Process-Start-Time-Unix", str(int(self._started_at)).encode())
        response.raw_headers += spelled_for([started], request.scope)
        return response


def _fault(status: str) -> Response:
    code, message, kind = _FAULTS[status]
    error = {"message": message, "type": kind, "code": code}
    return json_response({"status": status, "error": error}, code, _RETRY if code == 503 else None)
