"""What a gateway checks before it listens; `python -m gateway.checks FILE` tells all of it at once.

`llamapool doctor` runs that, so that it knows what a start would say: the parts are made as by a
start, but nothing is bound.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gateway.app import build_app
from gateway.http.api_prefix import read_prefix, read_route
from gateway.http.origin.client_address import TrustedProxies
from gateway.http.pages.pages import open_pages
from gateway.keys.ring import open_ring
from gateway.media.allow import AllowedUrls
from gateway.media.loader import MediaLoader
from gateway.metrics.metrics import Metrics
from gateway.parts import parts_of
from gateway.settings import gateway_config, load_pool
from protocol.config.config import GatewayConfig, load_keys
from protocol.errors import ConfigError
from protocol.process.listening import check_tls, is_local


def check_key(config: GatewayConfig) -> None:
    """Raise `ConfigError` if others would be served without the key that must be."""
    if config.require_key and not config.has_keys and not is_local(config):
        raise ConfigError(
            f"require_key: other hosts can reach {config.host} without a key: set --api-key or "
            "--api-key-file (LLAMA_API_KEY), or use --no-require-key"
        )


def check_settings(config: GatewayConfig) -> None:
    """Raise `ConfigError` unless the settings of the pages are a JSON object."""
    text = config.ui_config
    try:
        is_object = not text or isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ConfigError("--ui-config must be a JSON object")


_Check = Callable[[GatewayConfig], object]


async def _make_all(config: GatewayConfig) -> None:
    metrics = Metrics()
    build_app(config, parts_of(config, metrics), metrics)


_OF_THE_START: tuple[_Check, ...] = (
    check_tls,
    check_key,
    check_settings,
    lambda config: asyncio.run(_make_all(config)),
)
_OF_THE_PARTS: tuple[_Check, ...] = (
    open_pages,
    MediaLoader,
    lambda config: AllowedUrls(config.media_url_allow),
    lambda config: TrustedProxies(config.trusted_proxies),
    lambda config: read_prefix(config.api_prefix),
    lambda config: config.predict_route and read_route(config.predict_route, "predict_route"),
    lambda config: config.health_route and read_route(config.health_route, "health_route"),
    lambda config: open_ring(config.api_key, config.api_key_file, config.api_key_admin),
)
"""What may refuse to be made; a start ends with the first that does."""


def problems(config: GatewayConfig) -> list[str]:
    """Name everything for which a gateway would not start, without binding anything."""
    found = [_problem(check, config) for check in _OF_THE_START]
    if found[-1]:  # else none of them: they are not read again, as a key file may be a pipe
        found += [_problem(check, config) for check in _OF_THE_PARTS]
    return list(dict.fromkeys(filter(None, found)))


def _problem(check: _Check, config: GatewayConfig) -> str:
    try:
        check(config)
    except ConfigError as error:
        return str(error)
    return ""


def main() -> None:
    """Write the problems of a configuration file as JSON; its keys come on standard input."""
    keys = sys.stdin.buffer.read()
    try:
        pool = load_pool(Path(sys.argv[1]))
        if keys:
            pool = replace(pool, gateway=load_keys(pool.gateway, keys))
        found = problems(gateway_config(pool, {}))
    except ConfigError as error:
        found = [str(error)]
    sys.stdout.write(f"{json.dumps({'problems': found})}\n")


if __name__ == "__main__":
    main()
