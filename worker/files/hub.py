"""A Hugging Face repository: chooses its files and downloads them.

Files that were downloaded before need neither the network nor the hub's package.
"""

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from protocol.errors import ConfigError
from protocol.filenames import is_file
from worker.files.hub_cache import cache_folder, is_model, names_in, snapshot
from worker.files.model_file import paths_of

_USUAL = ("Q4_K_M", "Q8_0")
"""Quantizations to choose if none is named, by preference."""
_PRESET = "preset.ini"
_SERVES_PRESETS = f", but a {_PRESET}: its models are served by `llamapool serve -hf` alone"
_BITS = re.compile(r"[-._](?:[A-Z]*?)(\d+)(?:_\w+)?\.gguf$", re.IGNORECASE)


class Repository:
    """One repository; raises `ConfigError` with what to do if a file is unavailable."""

    def __init__(self, name: str, *, token: str, offline: bool) -> None:
        """`name` is `USER/MODEL[:QUANT]`."""
        self._full = name
        self._repo, _, self._quant = name.partition(":")
        self._token = token or None
        self._here = snapshot(self._repo, os.environ)
        self._listed: list[str] | None = None
        self._hub = None if offline else self._package()
        self._unasked = "the network is not used"

    def _package(self) -> Any:
        try:
            return importlib.import_module("huggingface_hub")
        except ImportError as error:
            if self._here is not None:
                return None
            raise ConfigError(
                f"{self._full} is not in the Hugging Face cache, and fetching needs a package: "
                "pip install 'llamapool[hub]'; or get the file yourself and give -m FILE"
            ) from error

    def name_of_model(self, file: str = "") -> str:
        """Return the file of that name, or the usual choice."""
        try:
            return file or pick_file(self._names(), self._quant)
        except ValueError as error:
            if _PRESET in self._names():
                raise self._fault(f"{error}{_SERVES_PRESETS}") from error
            raise self._fault(self._not_here() if self._hub is None else error) from error

    def name_of_projector(self, model: str) -> str:
        """Return the projector that belongs to a model; "" if there is none."""
        return pick_projector(self._names(), model)

    def preset(self) -> str:
        """Return the local path of the preset file that stands for the models; "" without one."""
        names = self._names()
        if self._hub is None and self._here is not None and is_file(self._here / _PRESET):
            return str(self._here / _PRESET)
        return self.fetch(_PRESET) if _PRESET in names else ""

    def fetch(self, name: str, bar: Callable[..., Any] | None = None) -> str:
        """Download a file, with all its parts if it is split; return its local path.

        `bar` reports the progress, in place of tqdm's class.
        """
        paths = [self._path(path.as_posix(), bar) for path in paths_of(Path(name))]
        return next((path for path in paths if Path(path).name == Path(name).name), paths[0])

    def _names(self) -> list[str]:
        """List the repository's files; the hub is asked once."""
        if self._listed is None:
            self._listed = self._list()
        return self._listed

    def _list(self) -> list[str]:
        """List the repository's files, or the local ones if the hub cannot be reached."""
        try:
            if self._hub is not None:
                return list(self._hub.list_repo_files(self._repo, token=self._token))
        except Exception as error:  # of the hub's package, its HTTP library, or the network
            if self._here is None:
                raise self._fault(error) from error
            self._hub, self._unasked = None, str(error)
        return names_in(self._here) if self._here is not None else []

    def _path(self, name: str, bar: Callable[..., Any] | None) -> str:
        if self._hub is None:
            path = self._here / name if self._here is not None else None
            if path is None or not is_file(path):
                raise self._fault(self._not_here())
            return str(path)
        try:
            get, folder = self._hub.hf_hub_download, str(cache_folder(os.environ))
            # Older versions of the package take no class of bars.
            takes_bar = bar is not None and "tqdm_class" in inspect.signature(get).parameters
            more = {"tqdm_class": bar} if takes_bar else {}
            return str(get(self._repo, name, token=self._token, cache_dir=folder, **more))
        except Exception as error:  # as above
            raise self._fault(error) from error

    def _not_here(self) -> str:
        return f"it is not here, and {self._unasked}"

    def _fault(self, reason: object) -> ConfigError:
        return ConfigError(
            f"cannot fetch {self._full}: {reason}; check name and network, or give -m FILE"
        )


def pick_file(names: Iterable[str], quant: str) -> str:
    """Choose a GGUF file as llama-server does: the named quantization, else the preferred one.

    Raises `ValueError` if there is none.
    """
    models = sorted(filter(is_model, names))
    for wanted in (quant,) if quant else _USUAL:
        if name := file_of(models, wanted):
            return name
    if quant or not models:
        raise ValueError(f"no GGUF file{f' of {quant}' if quant else ''} in it")
    return models[0]


def file_of(models: Iterable[str], quant: str) -> str:
    """Return the first file of a quantization; "" if there is none."""
    pattern = re.compile(rf"{re.escape(quant)}[.-]", re.IGNORECASE)
    return next((name for name in models if pattern.search(name)), "")


def pick_projector(names: Iterable[str], model: str) -> str:
    """Choose a model's projector as llama-server does: nearest folder, then nearest bit width."""
    folder = PurePosixPath(model).parent.parts
    found: list[tuple[int, int, str]] = []
    for name in names:
        if name.endswith(".gguf") and "mmproj" in name:
            at = PurePosixPath(name).parent.parts
            if folder[: len(at)] == at:
                found.append((-len(at), abs(_bits(name) - _bits(model)), name))
    return min(found)[2] if found else ""


def _bits(name: str) -> int:
    match = _BITS.search(name)
    return int(match[1]) if match else 0
