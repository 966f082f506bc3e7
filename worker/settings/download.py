"""Downloads a missing model: by URL, or from a Hugging Face repository.

Downloads are kept, so that the next start needs no network. A file gets its name only when it is
complete.
"""

import logging
import os
import shutil
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from protocol.config.config import PoolConfig, WorkerConfig
from protocol.errors import ConfigError
from protocol.filenames import expanded, is_file
from worker.files.hub import Repository

logger = logging.getLogger("supervisor")

_TIMEOUT_S = 30.0
"""Seconds without data until a download is given up."""
_FOLDER = "models"
"""Folder in which llama-server of 2024 stored downloads."""


def with_remote_preset(pool: PoolConfig, *, fetches: bool = True) -> PoolConfig:
    """Return the pool with models on demand if its repository has a `preset.ini` of them.

    As in llama-server, the preset takes precedence over the GGUF files beside it. Unless it
    `fetches`, only a preset that was fetched before is found.
    """
    gateway, worker = pool.gateway, (*pool.worker, WorkerConfig())[0]
    chooses = gateway.models_dir or gateway.models_preset
    if chooses or len(pool.worker) > 1 or worker.model_url or not worker.hf_repo:
        return pool
    offline = worker.offline or not fetches
    hub = Repository(worker.hf_repo, token=worker.hf_token, offline=offline)
    preset = hub.preset()
    if not preset:
        return pool
    if fetches:  # it is about to be served
        hint = "use presets that you trust"
        logger.warning("models of a remote preset", extra={"file": preset, "hint": hint})
    worker = replace(worker, hf_repo="", hf_file="")
    return replace(pool, gateway=replace(gateway, models_preset=preset), worker=(worker,))


def fetched(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with local model files; raises `ConfigError` with what to do."""
    if worker.model_url:
        worker = replace(worker, model=_from_url(worker, _model_at(worker)))
    elif worker.hf_repo:
        worker = _from_hub(worker)
    elif worker.hf_file:
        raise ConfigError("--hf-file needs --hf-repo")
    if worker.mmproj_url:
        worker = replace(worker, mmproj=_from_url(worker, _projector_at(worker)))
    if worker.hf_repo_draft:
        worker = replace(worker, model_draft=_draft(worker))
    return replace(
        worker,
        model_url="",
        mmproj_url="",
        hf_repo="",
        hf_file="",
        hf_repo_draft="",
        hf_token="",
    )


def located(worker: WorkerConfig) -> WorkerConfig:
    """Do the same without the network; missing files keep their address."""
    model = _model_at(worker).path if worker.model_url else None
    is_here = all(
        path is None or is_file(path)
        for path in (model, _projector_at(worker).path if worker.mmproj_url else None)
    )
    if is_here and not worker.hf_repo and not worker.hf_repo_draft:
        return fetched(worker)
    return replace(worker, model=str(model)) if model is not None else worker


class _Download(NamedTuple):
    """A URL and the path of its local file."""

    flag: str
    url: str
    path: Path


def _model_at(worker: WorkerConfig) -> _Download:
    return _place("--model-url", worker.model_url, worker.model)


def _projector_at(worker: WorkerConfig) -> _Download:
    return _place("--mmproj-url", worker.mmproj_url, worker.mmproj)


def _place(flag: str, url: str, file: str) -> _Download:
    parts = urllib.parse.urlsplit(url)
    name = Path(urllib.parse.unquote(parts.path)).name
    path = expanded(file) if file else Path(_FOLDER) / name
    if not is_file(path) and (parts.scheme not in ("http", "https") or not name):
        raise ConfigError(f"{flag} {url}: must be the http(s) address of a file")
    return _Download(flag, url, path)


def _from_url(worker: WorkerConfig, place: _Download) -> str:
    if is_file(place.path):
        return str(place.path)
    if worker.offline:
        raise ConfigError(
            f"{place.flag} needs the network, and --offline forbids it: put {place.path}"
        )
    _download(place.url, place.path)
    return str(place.path)


def _from_hub(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with the model of a repository, and its projector unless unwanted."""
    hub = Repository(worker.hf_repo, token=worker.hf_token, offline=worker.offline)
    name = hub.name_of_model(worker.hf_file)
    mmproj = worker.mmproj
    if worker.mmproj_auto and not mmproj and not worker.mmproj_url:
        projector = hub.name_of_projector(name)
        mmproj = hub.fetch(projector) if projector else ""
    return replace(worker, model=hub.fetch(name), mmproj=mmproj)


def _draft(worker: WorkerConfig) -> str:
    hub = Repository(worker.hf_repo_draft, token=worker.hf_token, offline=worker.offline)
    return hub.fetch(hub.name_of_model(worker.model_draft))


def _download(url: str, path: Path) -> None:
    # Imported here: HTTP, TLS and mail headers are 3 MB in every process that reads options.
    import urllib.error
    import urllib.request

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,  # noqa: S310 # http(s) only
            part.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except (OSError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the response keeps the connection open
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"cannot fetch {url}: {reason}; check the address and the network, or put the file at "
            f"{path} yourself"
        ) from error
    finally:
        part.unlink(missing_ok=True)
