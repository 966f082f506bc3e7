"""Models in the local Hugging Face cache, downloaded by any program; uses no network.

The layout is that of Hugging Face's own cache: `models--USER--NAME/refs/main` names a commit,
`snapshots/COMMIT` holds the files.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache."""
    found = ((environ[name], behind) for name, behind in _PLACES if environ.get(name))
    base, behind = next(found, (str(Path.home()), ".cache/huggingface/hub"))
    return Path(base) / behind


def snapshot(repo: str, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a repository's files; None if nothing of it is in the cache."""
    folder = cache_folder(environ) / f"models--{repo.replace('/', '--')}"
    refs = sorted((folder / "refs").glob("*"), key=lambda path: path.name != "main")
    for ref in refs:
        commit = ref.read_text(errors="replace").strip() if ref.is_file() else ""
        if _COMMIT.fullmatch(commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None


def names_in(folder: Path) -> list[str]:
    """List the files of a snapshot as a repository names them."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder).as_posix() for path in paths]


def cached_models(environ: Mapping[str, str]) -> list[str]:
    """List the models in the cache as `USER/NAME:TAG`."""
    return list(dict.fromkeys(_cached(environ)))


def _cached(environ: Mapping[str, str]) -> Iterator[str]:
    for path in sorted(cache_folder(environ).glob("models--*")):
        repo = path.name.removeprefix("models--").replace("--", "/")
        folder = snapshot(repo, environ)
        for name in names_in(folder) if folder else ():
            if is_model(name) and (tag := tag_of(name)):
                yield f"{repo}:{tag}"


def tag_of(name: str) -> str:
    """Return the quantization in the name of a file; "" if there is none."""
    found = _TAG.search(name)
    return found[1].upper() if found else ""


def is_model(name: str) -> bool:
    """Return whether a file is a model: not a projector or the like, nor a further part."""
    file = name.rpartition("/")[2]
    part = re.search(r"-(\d{5})-of-\d{5}\.gguf$", file)
    is_first = part is None or int(part[1]) == 1
    return file.endswith(".gguf") and is_first and not any(side in file for side in _SIDE_FILES)
