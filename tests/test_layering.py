"""Who may import whom, and how long a file and a function may be."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"gateway", "protocol", "worker"}
STDLIB = frozenset(sys.stdlib_module_names)
ENGINE = {
    "protocol.wire.messages",
    "protocol.wire.facts",
    "protocol.wire.sampling",
    "protocol.errors",
    "worker.engine",
}
TEXT = {"worker.output.generation", "worker.output.response_buffer"}
"""Where an answer ends: the engine decides that, and knows nothing of what an answer means."""
OUTPUT = {
    "protocol.wire.messages",
    "protocol.wire.facts",
    "protocol.wire.sampling",
    "protocol.errors",
    "worker.output",
}
DIALECTS = ("openai", "anthropic", "llamacpp")
DIALECT = {
    *("protocol", "orjson", "gateway.http.sse"),
    *("gateway.api.fields", "gateway.api.results"),
    *("gateway.api.chat_request", "gateway.api.reply", "gateway.api.unsupported"),
}
"""What the dialects share; none of them imports another."""

RULES: dict[str, set[str]] = {
    "protocol": {"msgpack", "protocol"},
    "gateway": {
        *("protocol", "gateway", "starlette", "hypercorn", "zmq", "orjson"),
        *("prometheus_client", "click", "uvloop", "h11"),
    },
    "gateway/api/fields": {"protocol", "orjson", "gateway.api.fields"},
    "gateway/api/results": {"protocol", "orjson", "gateway.api.results", "gateway.api.reply"},
    **{f"gateway/api/{name}": DIALECT | {f"gateway.api.{name}"} for name in DIALECTS},
    "gateway/api/openai/responses": DIALECT | {"gateway.api.openai.responses"},
    "gateway/api/chat_request.py": DIALECT,
    "gateway/api/reply.py": {"protocol", "orjson", "gateway.api.fields", "gateway.http.sse"},
    "gateway/api/unsupported.py": {"protocol"},
    "gateway/http/sse.py": {"protocol"},
    # A client of any server: it knows nothing of ours.
    "gateway/bench": {"gateway.bench", "h11", "orjson", "click", "uvloop"},
    "worker": {"protocol", "worker", "zmq", "click"},
    "worker/prompt/chat": {"protocol", "worker", "jinja2"},
    "worker/engine": ENGINE | TEXT,
    "worker/engine/fake/backend.py": ENGINE | {"protocol.config"},  # its delays are configured
    "worker/engine/fake/embedding.py": ENGINE | {"protocol.config"},
    "worker/output": OUTPUT,
    "worker/llama": {"protocol", "worker", "llama_cpp", "numpy"},
    "worker/grammar/gbnf": {"worker.grammar.gbnf", "numpy"},
    # The supervisor must start at once and outlive everybody.
    "worker/supervisor/supervisor.py": {"protocol", "worker"},
}
"""Folder or file to what it may import beside the standard library; the longest match counts."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_TEST_LINES = 60


def sources(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


PACKAGES = sources(*sorted(OURS))
EVERYTHING = PACKAGES + sources("tests", "benchmarks")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def rule_for(path: Path) -> set[str]:
    keys = [key for key in RULES if name_of(path) == key or name_of(path).startswith(f"{key}/")]
    return RULES[max(keys, key=len)]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            if node.module in OURS:  # `from worker import link` imports worker.link
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def is_allowed(module: str, allowed: set[str]) -> bool:
    return module.partition(".")[0] in STDLIB or any(
        module == name or module.startswith(f"{name}.") for name in allowed
    )


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_imports_follow_the_layers(path: Path) -> None:
    modules = imports(ast.parse(path.read_text()))
    foreign = sorted({module for module in modules if not is_allowed(module, rule_for(path))})
    assert not foreign, f"{name_of(path)} may not import {', '.join(foreign)}"


def test_the_api_never_awaits() -> None:
    for path in sources("gateway/api"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Await | ast.AsyncFunctionDef), name_of(path)


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    limit = MAX_FUNCTION_LINES if path in PACKAGES else MAX_TEST_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= limit, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_every_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), name_of(path)


def test_the_rules_would_catch_a_breach() -> None:
    tree = ast.parse("import zmq.asyncio\nfrom worker import link\nfrom protocol import messages\n")
    foreign = [module for module in imports(tree) if not is_allowed(module, RULES["protocol"])]
    assert foreign == ["zmq.asyncio", "worker.link"]
    assert not is_allowed("protocol.wire.codec", ENGINE)
    for parser in ("worker.output.chat_parser.parser", "worker.grammar.tools"):
        assert not is_allowed(parser, RULES["worker/engine"])
