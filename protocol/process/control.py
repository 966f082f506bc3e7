"""The control channel: orders of the gateways to the supervisor, and its reports.

A gateway decides which models run and passes on what an admin asks for; the supervisor owns the
processes. Between them is a unix stream socket in the runtime directory with one JSON object a
line. Both ends are of one release and one host, so an unknown field of a line is an error.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from protocol.config.rollout_config import GoldenConfig
from protocol.wire.field_readers import ProtocolError, unpacker

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
    """End a model's workers, or give its download up."""
    RELOAD = "reload"
    """Read the list of models again; answered by `Listed`."""
    DELETE = "delete"
    """Delete the files of an unloaded model of the cache, or give its download up; answered by
    `Listed`."""
    DOWNLOAD = "download"
    """Fetch a model into the cache; answered by `DownloadReport`."""
    YIELD = "yield"
    """Answers `ModelRecall`: the gateway has no request of the model, and begins none."""
    KEEP = "keep"
    """Answers `ModelRecall`: the gateway has requests of the model; `IDLE` follows."""
    IDLE = "idle"
    """The gateway has no request any more of a model that it kept."""


class Phase(StrEnum):
    """State of a worker, as far as its model's state depends on it."""

    LOADING = "loading"
    """It is starting, or waiting to restart."""
    READY = "ready"
    LEAVING = "leaving"
    """It is being unloaded: it finishes what it has."""
    GONE = "gone"
    """It has ended and will not be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """An order of the gateway."""

    verb: Verb
    model: str = ""
    id: str = ""
    """Of an order that `Listed` answers; no other order of any gateway has it."""
    if_unused: bool = False
    """Unload it only if no other gateway has requests of it."""
    is_overdue: bool = False
    """Also tell the gateways that use it to begin no more of its requests: one of another model has
    waited long for its room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecall:
    """Asks whether a gateway needs a model in whose place another gateway needs a different one.

    Answered by `Verb.YIELD` or `Verb.KEEP`.
    """

    model: str
    is_overdue: bool = False
    """The gateway begins no more requests of it until it was unloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKept:
    """Tells all gateways that one of them has requests of a model, or that it has none any more."""

    model: str
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """Answers an order to load: as many models are loaded as may be."""

    model: str


CACHE_SOURCE = "cache"
"""Source of the models of the Hugging Face cache, which can be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model that can be loaded."""

    name: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    source: str = "preset"
    """`preset`, `models_dir` or `cache`, as llama-server names them."""
    args: tuple[str, ...] = ()
    """Its options as a command line."""
    preset: str = ""
    """Its options as a section of a preset file."""
    inputs: tuple[str, ...] = ("text",)
    is_hidden: bool = False
    """Whether lists leave it out, because another model has the same file."""
    stamp: str = ""
    """Changes whenever its configuration changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The supervisor's list of all models; also the first line of a connection."""

    models: tuple[ModelInfo, ...] = ()
    answers: str = ""
    """The id of the order that it answers, if any; all gateways get it."""
    error: str = ""
    """Why that order failed; the models are then the earlier ones."""
    is_greeting: bool = False
    """Whether this is the first line of a connection."""
    workers: tuple["WorkerReport", ...] = ()
    """The current workers, in a greeting, and those that could not load their model."""
    downloads: tuple[str, ...] = ()
    """The models that are being fetched, in a greeting."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadReport:
    """The supervisor's report on a download; the first one confirms that it has started."""

    model: str
    file: str = ""
    """Name of the file that is being fetched."""
    done: int = 0
    total: int = 0
    """Bytes of the file; 0 if they are not known."""
    has_ended: bool = False
    error: str = ""
    """Why it failed."""


# ---- what an admin asks for, and what becomes of it -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """First line of a gateway that wants `FleetReport`, and that answers `GoldenQuestion`."""


class WorkerVerb(StrEnum):
    """What an admin does with one worker."""

    DRAIN = "drain"
    UNDRAIN = "undrain"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """Take a worker out of service, or start it again; answered by `Reply`."""

    id: int
    verb: WorkerVerb
    worker: str
    force: bool = False
    """Also if it is the only one of its model."""
    served_elsewhere: tuple[str, ...] = ()
    """Models that workers of other hosts serve."""


def only_one_serves(worker: str, model: str) -> str:
    """Return why a worker is not drained without `force`."""
    how = '--force ("force": true in the admin API) drains it all the same'
    return f"'{worker}' is the only worker of '{model}' that serves: {how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOrder:
    """Replace the workers, one at a time; answered by `Reply` once it has started."""

    id: int
    config: str = ""
    """Path of the configuration file; empty: the one that was read last."""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options that take precedence over the file: `worker.n_ctx` to its value."""
    golden: tuple[GoldenConfig, ...] = ()
    """Besides those of the configuration."""
    only_changed: bool = False
    """Leave the workers alone whose configuration and files are as they were."""
    surge: str = "auto"
    """Start the new worker before the old one leaves: `auto` where memory allows, `on`, `off`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOrder:
    """Stop the rolling change and roll it back; answered by `Reply`."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answers an order of an admin."""

    id: int
    error: str = ""
    """Why it is not carried out; empty if it is."""
    is_unknown: bool = False
    """There is no such worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenQuestion:
    """Asks a worker for the greedy answer to a prompt; answered by `Answered`."""

    id: int
    worker: str
    prompt: str
    n_predict: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A worker's answer."""

    id: int
    text: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """One process of the supervisor."""

    name: str
    model: str
    """Empty for a gateway."""
    state: str
    """`waiting`, `starting`, `ready`, `quarantined`, `given up`, `leaving` or `drained`."""
    pid: int = 0
    n_restarts: int = 0
    progress: float = 0.0
    """Share of the model that is loaded, 0 to 1."""
    retry_s: float = 0.0
    """Seconds until it starts again, at the time of the report."""
    why: str = ""
    """Why it does not run."""


class RolloutState(StrEnum):
    """Where a rolling change is."""

    NONE = "none"
    RUNNING = "running"
    GOING_BACK = "going back"
    DONE = "done"
    FAILED = "failed"
    """The workers are as before, except for differences that `why` names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReport:
    """The rolling change that runs, or the last one."""

    state: RolloutState = RolloutState.NONE
    number: int = 0
    """Counts the rolling changes since the supervisor's start."""
    n_done: int = 0
    n_total: int = 0
    worker: str = ""
    """The worker that is being replaced."""
    step: str = ""
    why: str = ""
    """Why it failed."""
    least_serving: int = 0
    """Fewest workers that served at the same time."""
    n_before: int = 0
    """Workers that served when it began."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """All processes of the supervisor; sent when something of it changes."""

    processes: tuple[ProcessReport, ...] = ()
    rollout: RolloutReport = RolloutReport()
    n_gateway_restarts: int = 0
    """How often gateways died and were started again, also those that were replaced since."""


ModelLine = Order | Listed | WorkerReport | ModelRecall | ModelKept | NoRoom | DownloadReport
AdminOrder = WorkerOrder | RolloutOrder | AbortOrder
Line = ModelLine | Subscribe | AdminOrder | Reply | GoldenQuestion | Answered | FleetReport

_KINDS: Mapping[str, type[Any]] = {
    "order": Order,
    "models": Listed,
    "worker": WorkerReport,
    "recall": ModelRecall,
    "kept": ModelKept,
    "no_room": NoRoom,
    "download": DownloadReport,
    "subscribe": Subscribe,
    "worker_order": WorkerOrder,
    "rollout": RolloutOrder,
    "abort": AbortOrder,
    "reply": Reply,
    "ask": GoldenQuestion,
    "answered": Answered,
    "fleet": FleetReport,
}
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
        kind: Any = _KINDS[fields.pop("kind")]
        if unknown := fields.keys() - kind.__dataclass_fields__.keys():
            raise ProtocolError(f"{kind.__name__}: unknown {unknown}")
        line: Line = unpacker(kind)(_with_tuples(fields))
    except (
        ProtocolError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ControlError(f"not a control line: {error!r}") from error
    return line


def _with_tuples(value: Any) -> Any:
    """Make the arrays of JSON tuples, as msgpack hands them to an unpacker."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, dict):
        return {name: _with_tuples(field) for name, field in value.items()}
    return value
