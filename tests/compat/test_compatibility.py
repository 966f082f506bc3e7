"""docs/using/compatibility.toml: every row has a test that exists, and nothing is left out."""

import ast
import tomllib
from functools import cache
from pathlib import Path

from starlette.routing import Route

from gateway.app import _api_routes
from gateway.media.loader import MediaLoader
from gateway.metrics.metrics import Metrics
from gateway.pool.pool import Pool
from gateway.replay.keeping import StreamKeeper
from gateway.routes.service import Service
from gateway.routes.unsupported import unsupported_routes
from gateway.siblings.siblings import Siblings
from protocol.config.config import GatewayConfig
from protocol.config.options.table import OPTIONS, UNUSED
from protocol.wire.facts import Stats
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import describe
from tests.compat.seed_options import API_LIKE_OAI, FOREIGN, SERVER
from tests.gateway.metrics.samples import scraped

ROOT = Path(__file__).parents[2]
TABLE: dict[str, dict[str, list[str]]] = tomllib.loads(
    (ROOT / "docs" / "using" / "compatibility.toml").read_text()
)
STATES = {"works", "ignored", "refused", "missing"}
OURS = {
    *("worker.count", "worker.devices", "worker.device_per_worker", "worker.step_target_ms"),
    "gateway.models_cache",
    *("gateway.continues", "gateway.api_key_admin", "gateway.require_key", "gateway.allowed_hosts"),
    *(
        "gateway.trusted_proxies",
        "gateway.bind",
        "gateway.gateways",
        "gateway.curve_key_file",
        "gateway.worker_keys",
        "worker.curve_key_file",
        "worker.gateway_keys",
        "gateway.trusted_proxy_header",
        "gateway.usage_dir",
        "gateway.otel",
    ),
}
"""Options that no other server has."""


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


ROWS = [(section, name, *row) for section, rows in TABLE.items() for name, row in rows.items()]


def test_a_row_has_a_state_and_unless_missing_a_test_that_exists() -> None:
    wrong = []
    for section, row, state, test, _ in ROWS:
        path, _, name = test.partition("::")
        is_there = (ROOT / path).is_file() and name in names_in(ROOT / path)
        if state not in STATES or not (is_there or state == "missing"):
            wrong.append(f"{section}: {row}: {state}, {test}")
    assert not wrong, "\n".join(wrong)


def named(prefix: str) -> set[str]:
    return {name for section, rows in TABLE.items() if section.startswith(prefix) for name in rows}


def test_every_option_of_the_documents_has_a_row() -> None:
    rows = named("Options")
    for line in filter(None, (SERVER + API_LIKE_OAI + FOREIGN).splitlines()):
        flags = [word for word in line.split() if word.startswith("-")]
        assert rows & {*flags, *(flag.replace("--no-", "--") for flag in flags)}, line


def test_every_option_that_sets_something_has_a_row() -> None:
    rows = named("Options")
    bare = {name.lstrip("-") for name in rows}
    for option in OPTIONS:
        flags = {flag.lstrip("-") for flag in (*option.flags, *option.off)}
        assert flags & bare or option.field in OURS, option.flags


def test_every_option_that_is_refused_or_foreign_says_so() -> None:
    by_flag = {flag: row for row in UNUSED for flag in row.flags}
    for name, (state, *_) in (
        (name, row) for section, rows in TABLE.items() if "Options" in section
        for name, row in rows.items()
    ):  # fmt: skip
        row = by_flag.get(name)
        if row is not None and row.is_refused:
            assert state == "refused", name
        if row is not None and row.is_foreign:
            assert state == "ignored", name


def test_every_endpoint_has_a_row() -> None:
    config = GatewayConfig()
    metrics = Metrics()
    service = Service(
        config=config,
        pool=Pool(config, metrics),
        metrics=metrics,
        models=None,
        media=MediaLoader(config),
        siblings=Siblings(""),
        keeper=StreamKeeper(config),
    )
    routes: list[Route] = [*_api_routes(service), *unsupported_routes()]
    served = {
        f"{method} {route.path}"
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served <= set(TABLE["Endpoints"])


def test_every_endpoint_that_is_refused_says_so() -> None:
    for route in unsupported_routes():
        for method in (route.methods or set()) - {"HEAD"}:
            state = TABLE["Endpoints"][f"{method} {route.path}"][0]
            assert state in ("refused", "missing"), route.path


def test_every_field_of_a_request_has_a_row() -> None:
    rows = named("Request fields")
    assert {row.name for row in describe(SamplingParams)} <= rows


async def test_every_metric_has_a_row() -> None:
    metrics = Metrics()
    metrics.record_stats("w", "m", 1, Stats(n_drafts=1, accepted_at=(1,)))
    text = scraped(metrics, Pool(GatewayConfig(), metrics).status)
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    rows = {name for name in TABLE["Metrics"] if name.startswith(("llama", "vllm:"))}
    assert sorted(shown ^ rows) == []


def test_only_options_without_an_effect_are_proved_by_being_taken() -> None:
    taken = ("test_every_option_of_the_documents_is_taken", "test_options_without_effect")
    for section, name, state, test, _ in ROWS:
        assert state == "ignored" or not any(one in test for one in taken), (section, name)
