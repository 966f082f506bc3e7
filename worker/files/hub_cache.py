"""Models in the local Hugging Face cache, downloaded by any program; uses no network.

The layout is that of Hugging Face's own cache: `models--USER--NAME/refs/main` names a commit,
`snapshots/COMMIT` holds the files.
"""

import contextlib
import os
import re
from collections.abc import Generator, Iterable, Mapping
from itertools import islice
from pathlib import Path

from protocol.errors import ConfigError
from protocol.filenames import expanded, is_dir, is_file
from worker.files.model_file import part_name

_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_SIDE_FILES = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_TAG = re.compile(r"[-.]([^-.]+)(?:-\d{5}-of-\d{5})?\.gguf$")
_PLACES = (
    ("LLAMA_CACHE", ""),
    ("HF_HUB_CACHE", ""),
    ("HUGGINGFACE_HUB_CACHE", ""),
    ("HF_HOME", "hub"),
    ("XDG_CACHE_HOME", "huggingface/hub"),
    ("HOME", ".cache/huggingface/hub"),
)
"""Environment variable and the path below it, in llama.cpp's order."""
# Anybody may have put anything into the cache, and the supervisor waits while it is read.
_MAX_REPOSITORIES = 4096
_MAX_REFS = 64
"""Branches and tags of a repository that are looked at."""
_MAX_ENTRIES = 20_000
"""Files and folders of a snapshot that are looked at."""
_MAX_FILES = 512
"""GGUF files of a snapshot."""
_REF_BYTES = 64
"""Bytes of a reference: the 40 digits of a commit, and some."""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache; raises `ConfigError` for a user without a home folder."""
    for name, behind in _PLACES:
        if environ.get(name):
            return Path(environ[name], behind)
    home = expanded("~")
    if not home.is_absolute():
        raise ConfigError("this user has no home folder: set HF_HOME or LLAMA_CACHE")
    return home / _PLACES[-1][1]


def snapshot(repo: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a repository's files; None if nothing of it is in the cache."""
    folder = cache_folder(environ) / f"models--{repo.replace('/', '--')}"
    if not is_dir(folder):
        return None
    refs = islice((folder / "refs").glob("*"), _MAX_REFS)
    for ref in sorted(refs, key=lambda path: path.name != "main"):
        commit = _commit(ref) if is_file(ref) else ""
        if _COMMIT.fullmatch(commit) and is_dir(folder / "snapshots" / commit):
            return folder / "snapshots" / commit
    return None


def _commit(ref: Path) -> str:
    with ref.open(errors="replace") as file:
        return file.read(_REF_BYTES).strip()


def names_in(folder: Path) -> list[str]:
    """List the GGUF files of a snapshot as a repository names them; no folder is a link."""
    found: list[str] = []
    with contextlib.closing(paths_in(folder)) as paths:
        for path in islice(paths, _MAX_ENTRIES):
            if path.suffix == ".gguf" and is_file(path) and len(found) < _MAX_FILES:
                found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def paths_in(folder: Path) -> Generator[Path, None, None]:
    """Walk a folder, however deep: neither `rglob` nor `os.walk` comes back from 1,000 levels."""
    folders = [str(folder)]
    while folders:
        # A folder may be closed to us, or its path too long.
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def repositories(environ: Mapping[str, str]) -> list[str]:
    """List the repositories in the cache as `USER/NAME`; none if there is no folder for it."""
    try:
        folders = islice(cache_folder(environ).glob("models--*"), _MAX_REPOSITORIES)
    except ConfigError:
        return []
    names = sorted(folder.name for folder in folders)
    return [name.removeprefix("models--").replace("--", "/") for name in names]


def cached_models(environ: Mapping[str, str]) -> list[str]:
    """List the models in the cache as `USER/NAME:TAG`."""
    return [
        f"{repo}:{tag}"
        for repo in repositories(environ)
        for folder in [snapshot(repo, environ)]
        for tag in (tags_of(names_in(folder)) if folder else ())
    ]


def tags_of(names: Iterable[str]) -> list[str]:
    """Return the quantizations among the files of a repository."""
    return list(dict.fromkeys(tag for name in names if is_model(name) and (tag := tag_of(name))))


def tag_of(name: str) -> str:
    """Return the quantization in the name of a file; "" if there is none."""
    found = _TAG.search(name)
    return found[1].upper() if found else ""


def is_model(name: str) -> bool:
    """Return whether a file is a model: not a projector or the like, nor a further part."""
    file = name.rpartition("/")[2]
    part = part_name(file)
    is_first = part is None or part.number == 1
    return file.endswith(".gguf") and is_first and not any(side in file for side in _SIDE_FILES)
