"""The models of the Hugging Face cache, as llama-server's router lists them; uses no network."""

import os
from collections.abc import Mapping
from pathlib import Path

from worker.models.folder import FoundModel, can_be_listed
from worker.settings.hub import pick_file, pick_projector
from worker.settings.hub_cache import cached_models, names_in, snapshot, tag_of


def scan_cache(environ: Mapping[str, str]) -> list[FoundModel]:
    """List the models in the cache as `USER/NAME:TAG`; nothing of a cache that cannot be read."""
    try:
        found = (_found(name, environ) for name in cached_models(environ))
        return [one for one in found if one is not None and can_be_listed(one)]
    except OSError:
        return []


def cached_file(repo: str, file: str, environ: Mapping[str, str]) -> str:
    """Return the path of the model that `USER/NAME[:TAG]` means; "" if it is not in the cache."""
    name, _, tag = repo.partition(":")
    folder = snapshot(name, environ)
    if folder is None:
        return ""
    try:
        path = folder / (file or pick_file(names_in(folder), tag))
    except ValueError:
        return ""
    return str(path) if path.is_file() else ""


def delete_cached(name: str, environ: Mapping[str, str]) -> None:
    """Delete the files of a quantization, and what they link to if nothing else does.

    Raises `OSError`.
    """
    repo, _, tag = name.partition(":")
    folder = snapshot(repo, environ)
    if folder is None:
        return
    files = [folder / one for one in names_in(folder) if tag_of(one) == tag.upper()]
    blobs = {_target(path) for path in files if path.is_symlink()}
    for path in files:
        path.unlink(missing_ok=True)
    # Other revisions may have the same file, too.
    used = {_target(path) for path in folder.parent.rglob("*") if path.is_symlink()}
    for blob in blobs - used:
        if blob.parent == folder.parent.parent / "blobs":  # a link may lead anywhere
            blob.unlink(missing_ok=True)


def _found(name: str, environ: Mapping[str, str]) -> FoundModel | None:
    repo, _, tag = name.partition(":")
    folder = snapshot(repo, environ)
    if folder is None:
        return None
    names = names_in(folder)
    try:
        file = pick_file(names, tag)
    except ValueError:
        return None
    projector = pick_projector(names, file)
    return FoundModel(name, str(folder / file), str(folder / projector) if projector else "")


def _target(link: Path) -> Path:
    return Path(os.path.normpath(link.parent / link.readlink()))
