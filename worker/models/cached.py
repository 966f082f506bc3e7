"""The models of the Hugging Face cache, as llama-server's router lists them; uses no network."""

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from protocol.filenames import is_file
from worker.files.hub import file_of, pick_file, pick_projector
from worker.files.hub_cache import (
    is_model,
    names_in,
    paths_in,
    repositories,
    snapshot,
    tag_of,
    tags_of,
)
from worker.models.folder import FoundModel, can_be_listed

logger = logging.getLogger("supervisor")


def scan_cache(environ: Mapping[str, str]) -> list[FoundModel]:
    """List the models in the cache as `USER/NAME:TAG`; unreadable repositories are left out."""
    found: list[FoundModel] = []
    for repo in repositories(environ):
        try:
            found += filter(can_be_listed, _found(repo, environ))
        except OSError as error:
            logger.warning(
                "models not listed",
                extra={"file": repo, "cause": error.strerror, "action": "it is left out"},
            )
    return found


def cached_file(repo: str, file: str, environ: Mapping[str, str]) -> str:
    """Return the path of the model `USER/NAME[:TAG]`; "" if it is not in the cache."""
    name, _, tag = repo.partition(":")
    folder = snapshot(name, environ)
    if folder is None:
        return ""
    try:
        path = folder / (file or pick_file(names_in(folder), tag))
    except ValueError:
        return ""
    return str(path) if is_file(path) else ""


def delete_cached(name: str, environ: Mapping[str, str]) -> None:
    """Delete the files of a quantization, and their blobs that no other link uses.

    Raises `OSError`.
    """
    repo, _, tag = name.partition(":")
    folder = snapshot(repo, environ)
    if folder is None:
        return
    home = folder.parent.parent
    if home.resolve() / folder.relative_to(home) != folder.resolve():
        raise OSError(errno.EXDEV, "its files are elsewhere", str(folder))
    files = [folder / file for file in names_in(folder) if tag_of(file) == tag.upper()]
    blobs = {_target(path) for path in files if path.is_symlink()}
    for path in files:
        path.unlink(missing_ok=True)
    # Other revisions may have the same file, too.
    used = {_target(path) for path in paths_in(folder.parent) if path.is_symlink()}
    for blob in blobs - used:
        # A link may lead anywhere.
        if blob.parent == home / "blobs" and not blob.parent.is_symlink():
            blob.unlink(missing_ok=True)


def _found(repo: str, environ: Mapping[str, str]) -> Iterator[FoundModel]:
    folder = snapshot(repo, environ)
    names = names_in(folder) if folder is not None else []
    models = list(filter(is_model, names))
    for tag in tags_of(names):
        file = file_of(models, tag)
        projector = pick_projector(names, file)
        assert folder is not None
        yield FoundModel(
            f"{repo}:{tag}", str(folder / file), str(folder / projector) if projector else ""
        )


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))
