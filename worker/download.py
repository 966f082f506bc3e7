"""Fetching a model that is not here: by URL, or from a Hugging Face repository.

What was fetched stays, so that the next start needs no network. A file appears under its name only
when it is whole.
"""

import importlib
import os
import re
import shutil
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.config import WorkerConfig
from protocol.errors import ConfigError

_TIMEOUT_S = 30.0
_FOLDER = "models"
"""Where llama-server of 2024 put what it fetched."""


def fetched(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with a local file as its model; raises `ConfigError` with the mend."""
    if worker.model_url:
        worker = replace(worker, model=_from_url(worker))
    elif worker.hf_repo:
        worker = replace(worker, model=_from_hub(worker))
    elif worker.hf_file:
        raise ConfigError("--hf-file needs --hf-repo")
    return replace(worker, model_url="", hf_repo="", hf_file="", hf_token="")


def located(worker: WorkerConfig) -> WorkerConfig:
    """Do the same without the network: a model that is not here keeps its address."""
    if not worker.model_url:
        return worker if worker.hf_repo else fetched(worker)
    path = _place(worker)
    return fetched(worker) if path.is_file() else replace(worker, model=str(path))


def _place(worker: WorkerConfig) -> Path:
    """Say where the file of a URL is or will be."""
    parts = urllib.parse.urlsplit(worker.model_url)
    name = Path(urllib.parse.unquote(parts.path)).name
    path = Path(worker.model).expanduser() if worker.model else Path(_FOLDER) / name
    if not path.is_file() and (parts.scheme not in ("http", "https") or not name):
        raise ConfigError(f"--model-url {worker.model_url}: must be the http(s) address of a file")
    return path


def _from_url(worker: WorkerConfig) -> str:
    path = _place(worker)
    if path.is_file():
        return str(path)
    if worker.offline:
        raise ConfigError(f"--model-url needs the network, and --offline forbids it: put {path}")
    _download(worker.model_url, path)
    return str(path)


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
            error.close()  # it holds the connection
        reason = getattr(error, "reason", error)
        raise ConfigError(
            f"cannot fetch {url}: {reason}; check the address and the network, or put the file at "
            f"{path} yourself"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _from_hub(worker: WorkerConfig) -> str:
    repo, _, quant = worker.hf_repo.partition(":")
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ConfigError(
            "--hf-repo needs the package huggingface_hub: pip install huggingface_hub, "
            "or fetch the file yourself and say -m FILE"
        ) from error
    token = worker.hf_token or None
    try:
        name = worker.hf_file or pick_file(hub.list_repo_files(repo, token=token), quant)
        return str(hub.hf_hub_download(repo, name, token=token, local_files_only=worker.offline))
    except Exception as error:  # the hub's own, its HTTP library's, or the network's
        raise ConfigError(
            f"cannot fetch {worker.hf_repo}: {error}; check name and network, or say -m FILE"
        ) from error


def pick_file(names: list[str], quant: str) -> str:
    """Choose a GGUF file as llama-server does: the named quantization, else Q4_K_M, else the first.

    Raises `ValueError` if there is none.
    """
    models = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name)
    for wanted in filter(None, (quant, "" if quant else "Q4_K_M")):
        pattern = re.compile(rf"(^|[-._/]){re.escape(wanted)}[-._]", re.IGNORECASE)
        for name in models:
            if pattern.search(name):
                return name
    if quant or not models:
        raise ValueError(f"no GGUF file{f' of {quant}' if quant else ''} in it")
    return models[0]
