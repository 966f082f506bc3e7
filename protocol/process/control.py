"""The control channel: orders of the gateway to the supervisor, and its reports.

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

SUCCESSOR_VARIABLE = "LLAMAPOOL_SUCCESSOR"
"""Environment variable of a gateway that takes over from a running one (`gateway.succession`)."""

AWAITED_VARIABLE = "LLAMAPOOL_AWAITED_WORKERS"
"""Environment variable of a gateway that is started again: how many workers will dial it."""

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line; a list of thousands of models is one line."""


class Verb(StrEnum):
    """Kinds of orders."""

    LOAD = "load"
    UNLOAD = "unload"
    RELOAD = "reload"
    """Read the list of models again; answered by `Listed`."""


class Phase(StrEnum):
    """State of a worker, as far as its model's state depends on it."""

    LOADING = "loading"
    """It is starting, or waiting to restart."""
    READY = "ready"
    GONE = "gone"
    """It has ended and will not be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the gateway."""

    verb: Verb
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can be loaded."""

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
    """Changes whenever its configuration changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The supervisor's list of all models; also the first line of a connection."""

    models: tuple[ModelInfo, ...] = ()
    error: str = ""
    """Why a reload failed; the models are then the earlier ones."""
    is_greeting: bool = False
    """Whether this is the first line of a connection."""
    workers: tuple["WorkerReport", ...] = ()
    """The current workers, in a greeting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The supervisor's report on a worker."""

    model: str
    worker: str
    phase: Phase
    progress: float = 0.0
    """Share of the model that is loaded, 0 to 1, while LOADING."""
    exit_code: int = 0
    """Exit code if it ended by itself; 0 if it was asked to leave."""
    why: str = ""
    """Reason of such an end."""


Line = Order | Listed | WorkerReport

_KINDS: Mapping[str, type[Any]] = {"order": Order, "models": Listed, "worker": WorkerReport}
_NAMES = {cls: name for name, cls in _KINDS.items()}


class ControlError(Exception):
    """A malformed line."""


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
