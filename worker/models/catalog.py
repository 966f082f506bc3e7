"""All models that can be loaded, from a folder and a preset file, as processes to start.

Precedence, as in llama-server's router: the command line, a model's section, the section for all
models, then the environment and the configuration file. Model files are not opened here: the worker
resolves its own configuration when it starts, so a broken file fails its own load only.
"""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protocol.config.config import GatewayConfig, PoolConfig, WorkerConfig
from protocol.config.options import table as options
from protocol.config.paths import anchored
from protocol.config.worker_config import alias_names
from protocol.errors import ConfigError
from protocol.filenames import working_directory
from protocol.named_file import read_named_text
from protocol.process.control import CACHE_SOURCE, ModelInfo
from worker.models.cached import cached_file, delete_cached, scan_cache
from worker.models.folder import FoundModel, scan
from worker.settings import ini
from worker.settings.preset import DEFAULT_STOP_S, Preset, as_args, as_section, read_preset
from worker.settings.resolve import counted

logger = logging.getLogger("supervisor")

_REPOSITORIES = (
    ("worker.hf_repo", "worker.hf_file"),
    ("worker.hf_repo_draft", "worker.model_draft"),
)
_PROGRAM = ("llamapool", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One model."""

    info: ModelInfo
    workers: tuple[WorkerConfig, ...]
    """Its processes, with unique names."""
    load_on_startup: bool = False
    stop_timeout_s: float = DEFAULT_STOP_S


class Catalog:
    """The models of one server; `read` updates them."""

    def __init__(
        self, pool: PoolConfig, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> None:
        """Take the configuration with environment and flags applied, and the flags alone.

        `environ` says where the Hugging Face cache is; without it there is none.
        """
        self._pool = pool
        self._environ = environ if pool.gateway.models_cache else None
        self._flags = {
            field: value
            for field, value in flags.items()
            if field.startswith(("worker.", "sampling.")) and field not in _REPOSITORIES[0]
        }
        self.entries: Mapping[str, CatalogEntry] = {}

    def read(self) -> None:
        """Find the models; raises `ConfigError` and then keeps the earlier ones."""
        gateway = self._pool.gateway
        found = scan(Path(gateway.models_dir)) if gateway.models_dir else []
        sections: ini.Sections = {}
        if gateway.models_preset:
            sections = ini.parse(_text_of(gateway.models_preset), origin=gateway.models_preset)
        cached = scan_cache(self._environ) if self._environ is not None else []
        entries = {entry.info.name: entry for entry in self._entries(found, cached, sections)}
        _refuse_duplicates(entry.info for entry in entries.values())
        self.entries = entries

    @property
    def base(self) -> WorkerConfig:
        """Settings of all models, over which sections take precedence."""
        return (self._pool.worker[:1] or (WorkerConfig(),))[0]

    def delete(self, name: str) -> None:
        """Delete the files of a model of the cache; raises `ConfigError`."""
        entry = self.entries.get(name)
        if entry is None or entry.info.source != CACHE_SOURCE or self._environ is None:
            raise ConfigError(f"{name} is not in the cache")
        try:
            delete_cached(name, self._environ)
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error

    def config_of(self, entry: CatalogEntry) -> PoolConfig:
        """Return the configuration for a model's processes, without API keys."""
        own = self._pool.gateway
        dialled = GatewayConfig(bind=own.bind, gateways=own.gateways)
        return replace(self._pool, gateway=dialled, worker=entry.workers)

    def _entries(
        self,
        found: Iterable[FoundModel],
        cached: Iterable[FoundModel],
        sections: ini.Sections,
    ) -> Iterator[CatalogEntry]:
        place = self._pool.gateway.models_preset
        presets = {
            name: read_preset(pairs, place=f"{place}: [{name}]") for name, pairs in sections.items()
        }
        every = presets.pop(ini.EVERY, Preset())
        listed = {model.name: _of_file(model) for model in found}
        files = {model.name: _of_file(model) for model in cached} | listed
        hidden = self._hidden(preset.over(every) for preset in presets.values())
        names_taken: set[str] = set()
        for name in sorted({*files, *presets}):
            if "," in name:
                _warn_unlisted(name, "there is a comma in its name", "give it another name")
                continue
            own = presets.get(name, Preset())
            preset = own.over(files.get(name, Preset()).over(every))
            for line in preset.warnings:
                logger.warning(
                    "option without effect",
                    extra={"model": name, "cause": line, "hint": "correct it in the preset"},
                )
            source = "models_dir" if name in listed else CACHE_SOURCE
            source = "preset" if name in presets else source
            entry = self._entry(name, preset, source, names_taken)
            if entry is None:
                _warn_unlisted(name, "its section names no model", "add `model` or `hf-repo` to it")
                continue
            is_hidden = source == CACHE_SOURCE and preset.settings["worker.model"] in hidden
            yield replace(entry, info=replace(entry.info, is_hidden=is_hidden))

    def _hidden(self, presets: Iterable[Preset]) -> set[str]:
        """Return the files of the cache that presets with `dedup-cache-models` use."""
        if self._environ is None:
            return set()
        asked = [preset.settings for preset in presets if preset.hides_cached]
        return {
            cached_file(settings.get(repo, ""), settings.get(file, ""), self._environ)
            for settings in asked
            for repo, file in _REPOSITORIES
            if settings.get(repo)
        }

    def _entry(
        self, name: str, preset: Preset, source: str, names_taken: set[str]
    ) -> CatalogEntry | None:
        """Return the entry of a model; None if nothing says where the model is."""
        settings = {**preset.settings, **self._flags}
        worker = self._worker(name, settings)
        if not (worker.model or worker.hf_repo or worker.model_url or worker.backend == "fake"):
            return None
        return CatalogEntry(
            info=ModelInfo(
                name=name,
                aliases=tuple(alias for alias in worker.aliases if alias != name),
                tags=worker.tags,
                source=source,
                args=(*_PROGRAM, *as_args({**settings, "worker.alias": name})),
                preset=as_section(name, settings),
                inputs=("text", "image") if worker.mmproj else ("text",),
                stamp=_stamp(worker),
            ),
            workers=_processes(worker, names_taken),
            load_on_startup=preset.load_on_startup or False,
            stop_timeout_s=(
                DEFAULT_STOP_S if preset.stop_timeout_s is None else preset.stop_timeout_s
            ),
        )

    def _worker(self, name: str, settings: Mapping[str, Any]) -> WorkerConfig:
        (worker,) = options.apply(PoolConfig(worker=(self.base,)), settings).worker
        aliases = alias_names(worker.alias) | {*worker.aliases}
        worker = replace(worker, alias=name, aliases=tuple(sorted(aliases)))
        # As in llama-server, relative paths of a preset are relative to where the server runs.
        (worker,) = anchored(PoolConfig(worker=(worker,)), working_directory()).worker
        return worker


def open_catalog(
    pool: PoolConfig, flags: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Catalog:
    """Return the models of a server that starts; raises `ConfigError`."""
    catalog = Catalog(pool, flags, environ)
    catalog.read()
    n_startup = sum(entry.load_on_startup for entry in catalog.entries.values())
    limit = pool.gateway.models_max
    if 0 < limit < n_startup:
        raise ConfigError(
            f"number of models to load on startup ({n_startup}) exceeds models_max ({limit})"
        )
    if not catalog.entries:
        logger.warning(
            "no models found",
            extra={
                "file": pool.gateway.models_dir or pool.gateway.models_preset or "the cache",
                "hint": "add one and ask for GET /models?reload=1",
            },
        )
    return catalog


def _warn_unlisted(model: str, cause: str, hint: str) -> None:
    logger.warning("model not listed", extra={"model": model, "cause": cause, "hint": hint})


def _of_file(found: FoundModel) -> Preset:
    settings = {"worker.model": found.model}
    return Preset(settings | ({"worker.mmproj": found.mmproj} if found.mmproj else {}))


def _processes(worker: WorkerConfig, names_taken: set[str]) -> tuple[WorkerConfig, ...]:
    """Return a model's processes; unique names, even if shortened model names are equal."""
    processes = list(counted(worker))
    n = 1
    while names_taken & {process.name for process in processes}:
        n += 1
        processes = list(counted(replace(worker, alias=f"{worker.alias}.{n}")))
    names_taken |= {process.name for process in processes}
    return tuple(replace(process, alias=worker.alias, count=1) for process in processes)


def _refuse_duplicates(models: Iterable[ModelInfo]) -> None:
    """Raise `ConfigError` if a name or alias belongs to two models."""
    owners: dict[str, str] = {}
    listed = list(models)
    for name, owner in [(model.name, model.name) for model in listed] + [
        (alias, model.name) for model in listed for alias in model.aliases
    ]:
        other = owners.get(name)
        if other == name:
            raise ConfigError(
                f"model name '{name}' is also an alias of model '{owner}': change one of them"
            )
        if other is not None:
            raise ConfigError(
                f"alias '{name}' of model '{owner}' is also one of model '{other}': "
                "change one of them"
            )
        owners[name] = owner


def _stamp(worker: WorkerConfig) -> str:
    return hashlib.sha256(repr(worker).encode(errors="surrogateescape")).hexdigest()[:16]


def _text_of(path: str) -> str:
    try:
        return read_named_text(Path(path))
    except OSError as error:
        raise ConfigError(f"cannot read models_preset {path}: {error.strerror}") from error
