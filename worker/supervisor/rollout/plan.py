"""Computes the changes from the running workers to those of a configuration. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.config.config import WorkerConfig
from protocol.scaled_file import split_scale
from worker.files.model_file import paths_of
from worker.settings.fingerprint import fingerprint, rounding, stamp
from worker.supervisor.rollout.change import Change

_SECOND = "~2"
"""End of the process name of every second generation, so that the old and the new process have
different names; the third generation has the plain name again."""

Stamps = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWorker:
    """One worker of a resolved configuration."""

    table: WorkerConfig
    """As in its table, before it got its share of the machine."""
    config: WorkerConfig
    """With its share of the machine: what the process gets."""
    process: str
    """Name of its process: the worker's name, or its second form."""
    stamps: Stamps = ()
    """Stamps of the files that it loads, at the time of the plan."""
    text_key: str = ""
    """Equal for workers that give exactly the same greedy texts."""

    @property
    def name(self) -> str:
        """Return the worker's name in the configuration."""
        return self.table.name

    @property
    def is_restorable(self) -> bool:
        """Whether its files have not been replaced since the plan."""
        return stamps_of(self.config) == self.stamps


def planned(table: WorkerConfig, config: WorkerConfig, process: str = "") -> PlannedWorker:
    """Plan a worker; reads samples of its files."""
    return PlannedWorker(
        table=table,
        config=replace(config, name=process or table.name),
        process=process or table.name,
        stamps=stamps_of(config),
        text_key=f"{fingerprint(config)} {rounding(config)}",
    )


def stamps_of(config: WorkerConfig) -> Stamps:
    """Return values that change when a file that a worker loads is replaced."""
    scaled = [split_scale(text).path for text in (*config.lora, *config.control_vector)]
    found = []
    for path in (config.model, config.model_draft, config.mmproj, *scaled):
        try:
            found += [stamp(file) for file in paths_of(Path(path))] if path else []
        except OSError:
            found.append((path, 0, 0, 0))
    return tuple(found)


def other_name(process: str) -> str:
    """Return the name of the next generation of a process."""
    return process.removesuffix(_SECOND) if process.endswith(_SECOND) else process + _SECOND


def base_name(process: str) -> str:
    """Return the worker's name of a process."""
    return process.removesuffix(_SECOND)


def find_process(processes: Iterable[str], name: str) -> str:
    """Return the process of a worker: named in full, or without host or generation; or nothing.

    A name with a host means no worker of another host.
    """
    names = list(processes)
    forms = (str, base_name) if "/" in name else (str, base_name, _without_host)
    for form in forms:
        found = [other for other in names if form(other) == form(name)]
        if len(found) == 1:
            return found[0]
    return ""


def _without_host(process: str) -> str:
    return base_name(process).rpartition("/")[2]


def changes(
    running: Mapping[str, PlannedWorker],
    wanted: Sequence[tuple[WorkerConfig, WorkerConfig]],
    *,
    only_changed: bool,
) -> tuple[list[Change], dict[str, PlannedWorker]]:
    """Return the changes, and the new workers by their process.

    `running` is by the worker's name; `wanted` holds table and configuration of each worker.
    Workers are added first, then replaced, then removed, so that as many as possible serve.
    """
    added, replaced = [], []
    coming: dict[str, PlannedWorker] = {}
    for table, config in wanted:
        old = running.get(table.name)
        if old is None:
            new = planned(table, config)
            added.append(Change(model=config.alias, new=new.process))
        else:
            new = planned(table, config, other_name(old.process))
            if only_changed and old.table == table and old.stamps == new.stamps:
                continue
            replaced.append(
                Change(
                    model=config.alias,
                    old=old.process,
                    new=new.process,
                    is_comparable=old.text_key == new.text_key,
                )
            )
        coming[new.process] = new
    names = {table.name for table, _ in wanted}
    removed = [
        Change(model=planned.config.alias, old=planned.process)
        for name, planned in running.items()
        if name not in names
    ]
    return [*added, *replaced, *removed], coming
