"""The bodies of GET /models and GET /models/sse for models that can be loaded. Pure."""

from collections.abc import Mapping
from typing import Any

from gateway.models.model import ManagedModel
from gateway.pool.status import ModelState
from protocol.process.control import CACHE_SOURCE

LOADING_STAGE = "text_model"

Event = Mapping[str, Any]


def listed(
    model: ManagedModel, shown: Mapping[str, Any], created: int, *, sleeps: bool
) -> dict[str, Any]:
    """Return a model of GET /models; `shown` are the fields that only a loaded model has."""
    info = model.info
    entry = {
        "id": info.name,
        "aliases": list(info.aliases),
        "tags": list(info.tags),
        "object": "model",
        "owned_by": "llamacpp",
        "created": created,
        "status": _status(model, sleeps=sleeps),
        "architecture": shown.get(
            "architecture",
            {"input_modalities": list(info.inputs), "output_modalities": ["text"]},
        ),
        "source": info.source,
        "can_remove": info.source == CACHE_SOURCE,
    }
    return {**shown, **entry}


def _status(model: ManagedModel, *, sleeps: bool) -> dict[str, Any]:
    status: dict[str, Any] = {
        "value": state_of(model, sleeps=sleeps),
        "args": list(model.info.args),
        "preset": model.info.preset,
    }
    if model.has_failed:
        status |= {"exit_code": model.exit_code, "failed": True, "reason": model.why}
    return status


def state_of(model: ManagedModel, *, sleeps: bool) -> ModelState:
    """Return the state of a model by llama-server's name."""
    return ModelState.SLEEPING if sleeps and model.is_usable else model.state


def change(
    model: ManagedModel, shown: Mapping[str, Any], *, has_started: bool, sleeps: bool
) -> Event:
    """Return the event for a change of a model's state."""
    data: dict[str, Any] = {"status": state_of(model, sleeps=sleeps)}
    if has_started:
        return {"model": model.name, "event": "model_status", "data": data}
    if model.state is ModelState.UNLOADED:
        data["exit_code"] = model.exit_code
    if model.state is ModelState.LOADING:
        stages = [LOADING_STAGE]
        data["progress"] = {"stages": stages, "current": LOADING_STAGE, "value": model.progress}
    if model.state is ModelState.LOADED and shown:
        data["info"] = shown
    return {"model": model.name, "event": "status_change", "data": data}


def removed(name: str) -> Event:
    """Return the event for a model whose files were deleted."""
    return {"model": name, "event": "model_remove"}


RELOADED: Event = {"model": "*", "event": "models_reload"}
