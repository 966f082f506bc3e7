"""Who may import whom, how long a file and a function may be, and what a folder holds.

Each test looks at every file and names all offenders at once.
"""

import ast
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"gateway", "protocol", "worker"}
STDLIB = frozenset(sys.stdlib_module_names)
ENGINE = {
    "protocol.wire.accounts",
    "protocol.wire.partial_answer",
    "protocol.wire.cached",
    "protocol.wire.messages",
    "protocol.wire.facts",
    "protocol.wire.sampling",
    "protocol.errors",
    "worker.engine",
}
TEXT = {"worker.output.generation", "worker.output.response_buffer"}
"""Where an answer ends: the engine decides that, and knows nothing of what an answer means."""
OUTPUT = {
    "protocol.wire.partial_answer",
    "protocol.wire.messages",
    "protocol.wire.facts",
    "protocol.wire.sampling",
    "protocol.errors",
    "worker.output",
}
DIALECTS = ("openai", "anthropic", "llamacpp")
DIALECT = {
    *("protocol", "orjson", "gateway.api.sse"),
    *("gateway.api.fields", "gateway.api.results"),
    *("gateway.api.chat_request", "gateway.api.reply", "gateway.api.unsupported"),
}
"""What the dialects share; none of them imports another."""

RULES: dict[str, set[str]] = {
    "protocol": {"msgpack", "protocol"},
    "gateway": {
        *("protocol", "gateway", "starlette", "hypercorn", "zmq", "orjson", "python_multipart"),
        *("prometheus_client", "click", "uvloop", "h11"),
    },
    "gateway/http/protocols": {"gateway.http.protocols", "hypercorn", "h11", "h2"},
    # Nothing else may import what only the extra `otel` brings.
    "gateway/tracing": {"protocol", "gateway", "starlette", "opentelemetry"},
    "gateway/api/fields": {"protocol", "orjson", "gateway.api.fields"},
    "gateway/api/results": {
        *("protocol", "orjson", "gateway.api.results", "gateway.api.reply", "gateway.api.sse"),
    },
    **{f"gateway/api/{name}": DIALECT | {f"gateway.api.{name}"} for name in DIALECTS},
    "gateway/api/openai/responses": DIALECT | {"gateway.api.openai.responses"},
    "gateway/api/chat_request.py": DIALECT,
    "gateway/api/reply.py": {"protocol", "orjson", "gateway.api.fields", "gateway.api.sse"},
    "gateway/api/unsupported.py": {"protocol"},
    "gateway/api/sse.py": {"protocol"},
    # A client of any server: it knows nothing of ours.
    "gateway/bench": {"gateway.bench", "h11", "orjson", "click", "uvloop"},
    # So is this, of a pool that it starts as a process.
    "gateway/soak": {"gateway.soak", "gateway.bench", "orjson", "click", "uvloop"},
    "worker": {"protocol", "worker", "zmq", "click"},
    "worker/prompt/chat": {"protocol", "worker", "jinja2"},
    "worker/engine": ENGINE | TEXT,
    "worker/engine/fake/backend.py": ENGINE | {"protocol.config"},  # its delays are configured
    "worker/engine/fake/embedding.py": ENGINE | {"protocol.config"},
    "worker/output": OUTPUT,
    "worker/llama": {"protocol", "worker", "llama_cpp", "numpy"},
    "worker/grammar/gbnf": {"worker.grammar.gbnf", "numpy"},
    # The supervisor must start at once and outlive everybody.
    "worker/supervisor": {"protocol", "worker"},
}
"""Folder or file to what it may import beside the standard library; the longest match counts."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_TEST_LINES = 60
MAX_LOOSE_FILES = 14
MAX_POLICY_CONSTANTS = 10
MAPPERS = ("gateway/api/openai", "gateway/api/llamacpp", "gateway/api/anthropic")


def sources(*folders: str) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


PACKAGES = sources(*sorted(OURS))
EVERYTHING = PACKAGES + sources("tests", "benchmarks", "docs")


@cache
def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Walk the statements below a node; expressions, most of a tree, hold none."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        below = getattr(node, field, ())
        for statement in below if isinstance(below, list) else ():
            yield statement
            yield from statements(statement)


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Parse without looking for garbage, and keep two million nodes no longer than needed."""
    gc.disable()
    yield
    parsed.cache_clear()
    gc.enable()


def rule_for(path: Path) -> set[str]:
    name = name_of(path)
    return RULES[max((key for key in RULES if f"{name}/".startswith(f"{key}/")), key=len)]


def imports(tree: ast.AST) -> Iterator[str]:
    for node in statements(tree):
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


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each function's name and its number of lines."""
    for node in statements(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_imports_follow_the_layers() -> None:
    breaches = [
        f"{name_of(path)} may not import {module}"
        for path in PACKAGES
        for module in sorted(set(imports(parsed(path))))
        if not is_allowed(module, rule_for(path))
    ]
    assert not breaches, "\n".join(breaches)


def test_mapping_folders_never_await() -> None:
    waiting = [
        name_of(path)
        for path in sources(*MAPPERS)
        if any(
            isinstance(node, ast.Await | ast.AsyncFunctionDef) for node in ast.walk(parsed(path))
        )
    ]
    assert not waiting


def test_files_stay_short() -> None:
    lengths = {name_of(path): len(text_of(path).splitlines()) for path in EVERYTHING}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}


@pytest.mark.slow
def test_functions_stay_short() -> None:
    packages = set(PACKAGES)
    too_long = [
        f"{name_of(path)}: {name} has {lines} lines"
        for path in EVERYTHING
        for name, lines in functions(path)
        if lines > (MAX_FUNCTION_LINES if path in packages else MAX_TEST_LINES)
    ]
    assert not too_long, "\n".join(too_long)


def test_every_module_says_what_it_owns() -> None:
    assert not [name_of(path) for path in PACKAGES if not ast.get_docstring(parsed(path))]


def test_a_folder_holds_few_loose_files() -> None:
    held = Counter(name_of(path.parent) for path in EVERYTHING if path.name != "__init__.py")
    assert not {folder: files for folder, files in held.items() if files > MAX_LOOSE_FILES}


@pytest.mark.slow
def test_a_class_name_stands_in_one_module() -> None:
    homes: dict[str, set[str]] = {}
    for path in PACKAGES:
        for node in statements(parsed(path)):
            if isinstance(node, ast.ClassDef):
                # A leading underscore hides a name from others, not from who searches for it.
                homes.setdefault(node.name.lstrip("_"), set()).add(name_of(path))
    assert not {name: sorted(modules) for name, modules in homes.items() if len(modules) > 1}


def package_of(module: str) -> str:
    """Name the folder that is a package's top level or lies in it: `gateway.http`, `worker`."""
    parts = module.split(".")
    is_folder = (ROOT / Path(*parts[:2]) / "__init__.py").is_file()
    return ".".join(parts[: 2 if is_folder else 1])


def imported_packages() -> dict[str, set[str]]:
    """Return what each package imports: packages of ours, and libraries by their first name."""
    found: dict[str, set[str]] = {}
    for path in PACKAGES:
        package = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for module in imports(parsed(path)):
            first = module.partition(".")[0]
            if first not in STDLIB:
                found.setdefault(package, set()).add(package_of(module) if first in OURS else first)
    return {package: packages - {package} for package, packages in found.items()}


def documented_packages() -> dict[str, set[str]]:
    """Read the table of docs/building/layers.md."""
    page = (ROOT / "docs" / "building" / "layers.md").read_text()
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    return {
        package.strip().strip("`"): {name.strip().strip("`") for name in names.split(",")} - {""}
        for package, *lists in rows
        for names in [",".join(lists)]
    }


def test_the_table_of_the_documents_is_what_packages_import() -> None:
    table, found = documented_packages(), imported_packages()
    assert set(table) == {package_of(name_of(path.parent).replace("/", ".")) for path in PACKAGES}
    wrong = [
        f"{package}: add {sorted(new)}, remove {sorted(table[package] - found.get(package, set()))}"
        for package in table
        if (new := found.get(package, set()) - table[package])
        or table[package] - found.get(package, set())
    ]
    assert not wrong, "docs/building/layers.md: " + "; ".join(wrong)


def test_no_folder_imports_what_imports_it() -> None:
    found = imported_packages()
    left = {
        name: {one for one in found[name] if one not in OURS} for name in found if name not in OURS
    }
    assert not in_circles(left)


def in_circles(imported: dict[str, set[str]]) -> set[str]:
    """Name what imports itself by way of others, and what imports that."""
    left = dict(imported)
    # Take away, again and again, whatever imports nothing that is left.
    while ends := [name for name, used in left.items() if not used & left.keys()]:
        for name in ends:
            del left[name]
    return set(left)


def modules_of(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Yield each module of `names` that is imported, also as a name of its package."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from names & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from names & {node.module or ""}
            yield from names & {f"{node.module}.{alias.name}" for alias in node.names}


def test_no_module_imports_what_imports_it() -> None:
    """An import inside a function counts, too: it hides a circle, it does not undo it."""
    paths = {name_of(path).removesuffix(".py").replace("/", "."): path for path in PACKAGES}
    names = {name for name in paths if not name.endswith(".__init__")}
    found = {name: set(modules_of(parsed(paths[name]), names)) for name in names}
    assert not in_circles(found)


def test_every_constant_of_the_step_policy_names_its_unit_and_source() -> None:
    silent, n_constants = [], 0
    for path in sources("worker/engine/scheduling"):
        body = parsed(path).body
        for node, below in zip(body, [*body[1:], ast.Pass()], strict=True):
            value = getattr(node, "value", None)
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not is_number(value):
                continue
            n_constants += 1
            text = ast.unparse(below) if isinstance(below, ast.Expr) else ""
            if "Source: " not in text or text.index("Source: ") < len("A unit."):
                silent.append(f"{name_of(path)}:{node.lineno}")
    assert not silent, "say the unit, then `Source: ...`, below: " + ", ".join(silent)
    assert n_constants <= MAX_POLICY_CONSTANTS


def is_number(value: object) -> bool:
    """Return whether an expression is made of numbers alone."""
    return isinstance(value, ast.AST) and all(
        isinstance(node, ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop)
        or (isinstance(node, ast.Constant) and isinstance(node.value, int | float))
        for node in ast.walk(value)
    )


def test_the_rules_would_catch_a_breach() -> None:
    tree = ast.parse("import zmq.asyncio\nfrom worker import link\nfrom protocol import messages\n")
    foreign = [module for module in imports(tree) if not is_allowed(module, RULES["protocol"])]
    assert foreign == ["zmq.asyncio", "worker.link"]
    assert not is_allowed("protocol.wire.codec", ENGINE)
    for parser in ("worker.output.chat_parser.parser", "worker.grammar.tools"):
        assert not is_allowed(parser, RULES["worker/engine"])


def test_an_import_is_found_wherever_it_stands() -> None:
    source = """
def f():
    try:
        import a
    except ImportError:
        import b
    else:
        import c
    finally:
        import d
    match x:
        case 1:
            import e
    with y:
        if z: pass
        elif w:
            import g
"""
    assert list(imports(ast.parse(source))) == ["a", "b", "c", "d", "e", "g"]
