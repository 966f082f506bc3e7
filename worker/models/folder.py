"""Finds the models of a folder: each file, and each sub-folder with a file, is one."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError
from protocol.filenames import is_dir, is_file
from worker.files.model_file import part_name

logger = logging.getLogger("supervisor")

_SUFFIX = ".gguf"
_DRAFTS = ("mtp-", "dspark-", "dflash-")
"""Prefixes of draft models beside a model, which are not listed, as in llama-server."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One model."""

    name: str
    model: str
    mmproj: str = ""


def scan(folder: Path) -> list[FoundModel]:
    """List the models of a folder by name; raises `ConfigError` if it cannot be read."""
    try:
        entries = sorted(folder.iterdir())
        found = choose(folder, [entry.name for entry in entries if is_file(entry)])
        for entry in entries:
            if is_dir(entry):
                found += _tried(entry)
    except OSError as error:
        raise ConfigError(f"models_dir {folder}: {error.strerror}: name a directory") from error
    return sorted(filter(can_be_listed, found), key=lambda model: model.name)


def can_be_listed(found: FoundModel) -> bool:
    """Whether JSON can contain the paths, which a file system allows to have any bytes."""
    paths = found.model + found.mmproj
    if paths.encode(errors="replace").decode() == paths:
        return True
    logger.warning(
        "model not listed",
        extra={
            "model": ascii(found.name)[1:-1],
            "cause": "its name is no UTF-8",
            "hint": "give the file another name",
        },
    )
    return False


def _tried(folder: Path) -> list[FoundModel]:
    """Return the model in a sub-folder; none if it is unreadable, such as `lost+found`."""
    try:
        return _in_subfolder(folder)
    except OSError as error:
        logger.warning(
            "models not listed",
            extra={"file": folder, "cause": error.strerror, "action": "it is left out"},
        )
        return []


def _in_subfolder(folder: Path) -> list[FoundModel]:
    names = sorted(entry.name for entry in folder.iterdir() if is_file(entry))
    models = choose(folder, names)[:1]
    mmproj = next((name for name in names if _is_mmproj(name)), "")
    projector = str(folder / mmproj) if mmproj else ""
    return [FoundModel(folder.name, model.model, projector) for model in models]


def choose(folder: Path, names: Sequence[str]) -> list[FoundModel]:
    """Return the models among the files of one folder; a model in parts is its first part."""
    return [FoundModel(_stem(name), str(folder / name)) for name in _models(names)]


def _models(names: Iterable[str]) -> list[str]:
    models = [name for name in names if name.endswith(_SUFFIX) and not _is_side_file(name)]
    parts = {name: part for name in models if (part := part_name(name))}
    # As in llama-server, a split model comes before a single file.
    return sorted(
        (name for name in models if name not in parts or parts[name].number == 1),
        key=lambda name: name not in parts,
    )


def _stem(name: str) -> str:
    part = part_name(name)
    return part.stem if part else name.removesuffix(_SUFFIX)


def _is_mmproj(name: str) -> bool:
    return "mmproj" in name and name.endswith(_SUFFIX)


def _is_side_file(name: str) -> bool:
    return _is_mmproj(name) or name.startswith(_DRAFTS)
