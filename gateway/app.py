"""Builds the ASGI application: the routes of all endpoints, and the middlewares before them."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Scope

from gateway.api.anthropic import messages
from gateway.api.fields.endpoints import ENDPOINTS
from gateway.api.llamacpp import completion, infill
from gateway.api.openai import chat, completions, transcriptions
from gateway.api.openai.responses import plan as responses
from gateway.feed.endpoint import PoolEventStream
from gateway.fleet.awaited import AwaitWorkersMiddleware
from gateway.fleet.supervisor_link import SupervisorLink
from gateway.http.access import AccessMiddleware
from gateway.http.api_prefix import PrefixMiddleware, read_prefix, read_route
from gateway.http.bodies.unread_body import UnreadBodyMiddleware
from gateway.http.direct_write import DirectWriteMiddleware
from gateway.http.errors import HANDLERS, JSON_TYPE, json_response
from gateway.http.known_query import KnownQuery
from gateway.http.origin.absolute_target import AbsoluteTargetMiddleware
from gateway.http.origin.auth import (
    PUBLIC_PATHS,
    AdminOnly,
    AuthMiddleware,
    AuthRules,
    require_operator,
)
from gateway.http.origin.client_address import TrustedProxies
from gateway.http.origin.cors import CorsMiddleware
from gateway.http.origin.rate_limits import RateLimitMiddleware
from gateway.http.origin.refusal_pause import RefusalPause
from gateway.http.origin.sites import HostMiddleware
from gateway.http.pages.pages import Pages, open_pages
from gateway.keys.ring import KeyRing, open_ring
from gateway.media.loader import MediaLoader
from gateway.metrics.metrics import Metrics
from gateway.models.leases import ModelLeaseMiddleware
from gateway.openapi.document import document
from gateway.parts import GatewayParts
from gateway.replay.endpoints import StreamEndpoints, StreamReplay
from gateway.routes.admin import Admin
from gateway.routes.control import ChatControlEndpoint
from gateway.routes.generate import GenerationEndpoint
from gateway.routes.models import ModelEndpoints, ModelEventStream
from gateway.routes.operators.fleet import FleetEndpoints
from gateway.routes.operators.quarantine import QuarantineEndpoints
from gateway.routes.operators.requests import RequestEndpoints
from gateway.routes.operators.usage import UsageEndpoints
from gateway.routes.predictions import PredictionEndpoint
from gateway.routes.prompts import PromptEndpoints
from gateway.routes.service import Service
from gateway.routes.slots import SlotEndpoints
from gateway.routes.tokens import TokenEndpoints
from gateway.routes.tuning import TuningEndpoints
from gateway.routes.unsupported import unsupported_routes
from gateway.routes.vectors import VectorEndpoints
from gateway.routes.wrapped import WrappedGeneration
from protocol.config.config import GatewayConfig
from protocol.errors import ConfigError, TaskError
from protocol.version import version

logger = logging.getLogger(__name__)

_Endpoint = Callable[..., Any]
_Table = Sequence[tuple[str, str, _Endpoint]]


def build_app(config: GatewayConfig, parts: GatewayParts, metrics: Metrics) -> ASGIApp:
    """Build the ASGI application; raises `ConfigError` for a file or a folder it cannot read."""
    service = Service(
        config=config,
        pool=parts.pool,
        metrics=metrics,
        models=parts.models,
        media=MediaLoader(config),
        siblings=parts.siblings,
        keeper=parts.keeper,
    )
    pages = open_pages(config)
    routes = _all_routes(service, parts)
    layers = _middleware(service, parts.supervisor, _public_page(pages, routes))
    app = Starlette(
        routes=[*routes, *pages.routes()],
        middleware=[*parts.outermost, *layers],
        exception_handlers={**HANDLERS, TaskError: RefusalPause().answer},
    )
    app.router.redirect_slashes = False  # `/health/` is File Not Found, not a redirect
    return DirectWriteMiddleware(app)


def _all_routes(service: Service, parts: GatewayParts) -> list[Route]:
    """Return all routes but those of pages; raises `ConfigError` if an added path is taken."""
    used = UsageEndpoints(parts.usage, service.siblings)
    admins = (*_fleet_routes(service, parts.supervisor), *_usage_routes(service, used))
    routes = [*_api_routes(service), *_replay_routes(service), *admins, *unsupported_routes()]
    routes.append(_strict_route("GET", "/v1/usage", request_response(used.own)))
    stream = PoolEventStream(parts.feed, service.config)
    routes.append(Route("/pool/events", stream, methods=["GET"]))
    routes += _configured_routes(service, routes)
    routes.append(_openapi_route(routes, service.config))
    return routes


def _middleware(
    service: Service, supervisor: SupervisorLink, is_page: Callable[[str], bool]
) -> list[Middleware]:
    """Return the layers around the endpoints, the outermost first; raises `ConfigError`."""
    config = service.config
    ring, requests = _key_ring(config), service.pool.requests
    proxies = TrustedProxies(config.trusted_proxies, config.trusted_proxy_header)
    rules = AuthRules(
        isolation=config.cache_isolation,
        origins=config.cors_origins,
        public=PUBLIC_PATHS | {config.health_route},
        is_page=is_page,
    )
    return [
        Middleware(AbsoluteTargetMiddleware),
        Middleware(UnreadBodyMiddleware, service.body_limits),
        Middleware(AccessMiddleware, service.metrics, config.limits, proxies, requests),
        Middleware(HostMiddleware, config, is_open=ring.is_open),
        Middleware(CorsMiddleware, config),
        Middleware(PrefixMiddleware, read_prefix(config.api_prefix)),
        Middleware(AuthMiddleware, ring, rules),
        Middleware(RateLimitMiddleware, service.pool.dispatcher.allowances),
        Middleware(AwaitWorkersMiddleware, supervisor, service.pool.dispatcher.cards),
        Middleware(ModelLeaseMiddleware),
    ]


def _key_ring(config: GatewayConfig) -> KeyRing:
    """Read all keys; raises `ConfigError`. Warns if none of them is an admin's."""
    ring = open_ring(config.api_key, config.api_key_file, config.api_key_admin)
    if not ring.has_admin:
        logger.warning(
            "no key is an admin's",
            extra={
                "action": "requests that only an admin may make are refused",
                "hint": "mark a key with --api-key-admin, or in the key file",
            },
        )
    return ring


def _configured_routes(service: Service, routes: Sequence[Route]) -> list[Route]:
    """Return the routes that the configuration adds; raises `ConfigError` if a path is taken."""
    config, added = service.config, {}
    if config.predict_route:
        endpoint = PredictionEndpoint(service, routes)
        path = read_route(config.predict_route, "predict_route")
        added["predict_route"] = Route(path, endpoint.predict, methods=["POST"])
    if config.health_route:
        path = read_route(config.health_route, "health_route")
        added["health_route"] = Route(path, Admin(service).health, methods=["GET"])
    for option, route in added.items():
        if any(route.path == known.path for known in routes):
            raise ConfigError(f"{option} {route.path}: this path has an endpoint already")
    return [*added.values()]


def _openapi_route(routes: list[Route], config: GatewayConfig) -> Route:
    """Return the route of the OpenAPI document, which describes all routes, itself included."""

    @cache  # it takes some milliseconds, and a client may ask for it many times at once
    def written() -> bytes:
        prefix = read_prefix(config.api_prefix)
        return bytes(json_response(document(routes, version(), prefix)).body)

    async def openapi(request: Request) -> Response:
        return Response(written(), media_type=JSON_TYPE)

    return Route("/openapi.json", openapi, methods=["GET"])


def _public_page(pages: Pages, routes: Sequence[Route]) -> Callable[[str], bool]:
    """Return a function that tells whether a path is a page, which needs no key."""
    endpoints = {route.path for route in routes}
    return lambda path: path not in endpoints and pages.is_page(path)


def _api_routes(service: Service) -> list[Route]:
    posts = _completion_posts(service) | _chat_posts(service) | _other_posts(service)
    models = ModelEndpoints(service)
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        *(
            Route(path, endpoint, methods=["GET"])
            for path, endpoint in _get_endpoints(service).items()
        ),
        # After the list: a prediction that names `models` means that.
        Route("/models", _admin_only(models.download), methods=["POST"]),
        Route("/models", _admin_only(models.remove), methods=["DELETE"]),
    ]


def _chat_posts(service: Service) -> dict[str, _Endpoint]:
    """Return the chat endpoints of each API."""
    chatting = WrappedGeneration(service, chat.plan, "ChatCompletion")
    responding = GenerationEndpoint(service, responses.plan, "Response")
    chats = PromptEndpoints(service, chat.plan, "ChatCompletion")
    prompts = PromptEndpoints(service, responses.plan, "Response")
    transcribing = GenerationEndpoint(service, transcriptions.plan, "Transcription")
    return {
        "/v1/chat/completions": chatting,
        "/chat/completions": chatting,
        "/v1/chat/completions/control": ChatControlEndpoint(service).control,
        "/v1/chat/completions/input_tokens": chats.count_typed,
        "/chat/completions/input_tokens": chats.count_typed,
        "/apply-template": chats.render,
        "/v1/responses": responding,
        "/responses": responding,
        "/v1/responses/input_tokens": prompts.count_typed,
        "/responses/input_tokens": prompts.count_typed,
        "/v1/audio/transcriptions": transcribing,
        "/audio/transcriptions": transcribing,
        "/v1/messages": GenerationEndpoint(service, messages.plan, "Message"),
        "/v1/messages/count_tokens": PromptEndpoints(service, messages.plan, "Message").count,
    }


def _completion_posts(service: Service) -> dict[str, _Endpoint]:
    """Return the endpoints that generate from a prompt."""
    return {
        "/v1/completions": WrappedGeneration(service, completions.plan, "TextCompletion"),
        "/completion": GenerationEndpoint(service, completion.plan, "Completion"),
        "/completions": WrappedGeneration(service, completion.plan, "Completion"),
        "/infill": GenerationEndpoint(service, infill.plan, "Infill"),
    }


def _other_posts(service: Service) -> dict[str, _Endpoint]:
    """Return the endpoints that generate nothing."""
    vectors, tokens = VectorEndpoints(service), TokenEndpoints(service)
    tuning, models = TuningEndpoints(service), ModelEndpoints(service)
    rerank_paths = ("/rerank", "/reranking", "/v1/rerank", "/v1/reranking")
    return {
        "/v1/embeddings": vectors.openai,
        "/embeddings": vectors.native,
        "/embedding": vectors.native_of_2024,
        **dict.fromkeys(rerank_paths, vectors.rerank),
        "/tokenize": tokens.tokenize,
        "/detokenize": tokens.detokenize,
        "/slots/{id_slot}": _admin_only(SlotEndpoints(service).act),
        "/lora-adapters": _admin_only(tuning.set_adapters),
        "/props": _admin_only(tuning.set_props),
        "/models/load": _admin_only(models.load),
        "/models/unload": _admin_only(models.unload),
    }


def _replay_routes(service: Service) -> list[Route]:
    """Return the endpoints for kept streams."""
    service.metrics.kept = service.keeper.sessions.size
    streams = StreamEndpoints(service.keeper.sessions, service.body_limits, service.siblings)
    replay = StreamReplay(service.keeper, service.siblings)
    return [
        Route("/v1/stream", replay, methods=["GET"]),
        Route("/v1/stream", streams.end, methods=["DELETE"]),
        Route("/v1/streams/lookup", streams.lookup, methods=["POST"]),
    ]


def _fleet_routes(service: Service, supervisor: SupervisorLink) -> list[Route]:
    """Return the admin API, which needs an admin's key or the admin socket."""
    fleet = FleetEndpoints(service, supervisor)
    refused = QuarantineEndpoints(service.pool, service.siblings)
    table: _Table = (
        ("GET", "/admin/status", fleet.status),
        ("GET", "/admin/workers", fleet.workers),
        ("GET", "/admin/quarantine", refused.show),
        ("DELETE", "/admin/quarantine", refused.release),
        ("GET", "/admin/rollout", fleet.show_rollout),
        ("POST", "/admin/rollout", fleet.start_rollout),
        ("POST", "/admin/rollout/abort", fleet.abort_rollout),
        ("POST", "/admin/drain", fleet.drain),
        ("POST", "/admin/undrain", fleet.undrain),
    )
    return _operator_routes(table)


def _usage_routes(service: Service, used: UsageEndpoints) -> list[Route]:
    """Return the admin endpoints for requests and for usage."""
    requests = RequestEndpoints(
        service.pool.requests, service.pool.dispatcher.queue.places, service.siblings
    )
    return _operator_routes(
        (
            ("GET", "/admin/requests", requests.running),
            ("GET", "/admin/requests/{id:path}", requests.one),
            ("GET", "/admin/usage", used.admin),
        )
    )


def _operator_routes(table: _Table) -> list[Route]:
    return [
        _strict_route(method, path, request_response(endpoint), require_operator)
        for method, path, endpoint in table
    ]


def _strict_route(
    method: str, path: str, endpoint: ASGIApp, require: Callable[[Scope], None] | None = None
) -> Route:
    """Return the route of an endpoint that no other server has: it knows its parameters."""
    described = ENDPOINTS[method, path.replace(":path}", "}")]
    strict: ASGIApp = KnownQuery(endpoint, described.query)
    return Route(path, AdminOnly(strict, require) if require else strict, methods=[method])


def _admin_only(endpoint: _Endpoint) -> ASGIApp:
    return AdminOnly(request_response(endpoint))


def _get_endpoints(service: Service) -> dict[str, _Endpoint]:
    admin = Admin(service)
    return {
        "/health": admin.health,
        "/v1/health": admin.health,
        "/livez": admin.livez,
        "/readyz": admin.readyz,
        "/v1/models": admin.models,
        "/models": admin.models,
        "/v1/models/{id:path}": admin.model,
        "/props": admin.props,
        "/slots": admin.slots,
        "/lora-adapters": TuningEndpoints(service).list_adapters,
        "/metrics": admin.metrics,
        "/models/sse": ModelEventStream(service),
    }
