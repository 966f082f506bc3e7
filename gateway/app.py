"""Composition only: which endpoint answers where, and what stands before all of them."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.access import AccessMiddleware
from gateway.auth import AuthMiddleware, key_ring
from gateway.cors import CorsMiddleware
from gateway.errors import HANDLERS
from gateway.llamacpp import completion
from gateway.metrics import Metrics
from gateway.openai import chat, completions
from gateway.pool import Pool
from gateway.routes.admin import Admin
from gateway.routes.generate import Generation
from gateway.routes.tokens import Detokenization, Tokenization
from gateway.routes.unsupported import unsupported_routes
from gateway.service import Service
from protocol.config import GatewayConfig


def build_app(config: GatewayConfig, pool: Pool, metrics: Metrics) -> ASGIApp:
    """Build the ASGI application; raises `ConfigError` for an unreadable key file."""
    service = Service(config=config, pool=pool, metrics=metrics)
    app = Starlette(
        routes=[*_routes(service), *unsupported_routes()],
        middleware=[
            Middleware(AccessMiddleware, metrics),
            Middleware(CorsMiddleware),
            Middleware(AuthMiddleware, key_ring(config.api_key, config.api_key_file)),
        ],
        exception_handlers=dict(HANDLERS),
    )
    app.router.redirect_slashes = False  # `/health/` is File Not Found, not a redirect
    return app


def _routes(service: Service) -> list[Route]:
    admin = Admin(service)
    chatting = Generation(service, chat.plan)
    native = Generation(service, completion.plan)
    posts: dict[str, Callable[..., Any]] = {
        "/v1/chat/completions": chatting,
        "/chat/completions": chatting,
        "/v1/completions": Generation(service, completions.plan),
        "/completion": native,
        "/completions": native,
        "/tokenize": Tokenization(service),
        "/detokenize": Detokenization(service),
    }
    gets = {
        "/health": admin.health,
        "/v1/health": admin.health,
        "/livez": admin.livez,
        "/readyz": admin.readyz,
        "/v1/models": admin.models,
        "/models": admin.models,
        "/props": admin.props,
        "/slots": admin.slots,
        "/metrics": admin.metrics,
    }
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
        *(Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()),
    ]
