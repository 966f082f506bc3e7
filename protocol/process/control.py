"""The control channel: what the gateway orders of the supervisor, and what that reports.

The gateway decides which models run; the supervisor owns the processes. Between them is a unix
stream socket in the runtime directory with one JSON object a line. Both ends are of one release and
one host, so unknown fields are an error.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MAX_LINE_BYTES = 64 * 1024 * 1024
"""A list of thousands of models is one line."""


class Verb(StrEnum):
    """What the gateway can order."""

    LOAD = "load"
    UNLOAD = "unload"
    RELOAD = "reload"
    """Look for the models again; answered by `Listed`."""


class Phase(StrEnum):
    """Where a worker is in its life, as far as a model's state depends on it."""

    LOADING = "loading"
    """It starts, or starts again after a delay."""
    READY = "ready"
    GONE = "gone"
    """It has ended and will not start again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """From the gateway."""

    verb: Verb
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that could be loaded."""

    name: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    source: str = "preset"
    """`preset` or `models_dir`, as llama-server names them."""
    args: tuple[str, ...] = ()
    """Its options as a command line."""
    preset: str = ""
    """Its options as a section of a preset file."""
    inputs: tuple[str, ...] = ("text",)
    stamp: str = ""
    """Changes with its configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """From the supervisor: every model there is. The first line of a connection, too."""

    models: tuple[ModelInfo, ...] = ()
    error: str = ""
    """Why a reload failed; then the models are those of before."""
    is_greeting: bool = False
    """A connection begins."""
    workers: tuple["WorkerReport", ...] = ()
    """What runs, in a greeting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """From the supervisor: how a worker of a model is."""

    model: str
    worker: str
    phase: Phase
    progress: float = 0.0
    """How much of the model is read, while LOADING."""
    exit_code: int = 0
    """How it ended, when GONE by itself; 0 if it was told to go."""
    why: str = ""
    """What is known of such an end."""


Line = Order | Listed | WorkerReport

_KINDS: Mapping[str, type[Any]] = {"order": Order, "models": Listed, "worker": WorkerReport}
_NAMES = {cls: name for name, cls in _KINDS.items()}


class ControlError(Exception):
    """A line that neither side writes."""


def encode(line: Line) -> bytes:
    """Write one line."""
    return json.dumps({"kind": _NAMES[type(line)], **dataclasses.asdict(line)}).encode() + b"\n"


def decode(data: bytes) -> Line:
    """Read one line; raises `ControlError`."""
    try:
        fields = json.loads(data)
        cls = _KINDS[fields.pop("kind")]
        fields = {name: _frozen(value) for name, value in fields.items()}
        if cls is Listed:
            fields["models"] = tuple(_model(model) for model in fields["models"])
            fields["workers"] = tuple(_worker(**worker) for worker in fields["workers"])
        return _worker(**fields) if cls is WorkerReport else _typed(cls(**fields))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ControlError(f"not a control line: {error!r}") from error


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _model(fields: Mapping[str, Any]) -> ModelInfo:
    return ModelInfo(**{name: _frozen(value) for name, value in fields.items()})


def _worker(*, phase: str, **fields: Any) -> WorkerReport:
    return WorkerReport(phase=Phase(phase), **fields)


def _typed(line: Order | Listed) -> Line:
    return dataclasses.replace(line, verb=Verb(line.verb)) if isinstance(line, Order) else line
