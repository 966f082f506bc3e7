"""Runs all checks in order, each on a thread: a check that fails or hangs is a finding, too."""

import logging
import platform
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from protocol.config import config as configs
from protocol.config.config import WorkerConfig
from protocol.config.usage_config import usage_folder
from worker.doctor import gateway, gpu, keys, library, model, packages, probe, system
from worker.doctor.case import DoctorCase, write
from worker.doctor.finding import Finding, fail, ok, warn
from worker.doctor.readers.elf import built_for
from worker.files.context_size import planned_cache
from worker.files.gguf_header import read_header
from worker.host.child import ChildOutcome
from worker.host.topology import free_memory, gpu_files, group_memory, text_of
from worker.host.weights import maps
from worker.settings.fingerprint import fingerprint
from worker.settings.resolve import MADE_AT_START

logger = logging.getLogger(__name__)

Check = Callable[[], Iterable[Finding]]
Ask = Callable[[], ChildOutcome]

_LIMIT_S = 60.0
"""Longest time of a check that does not load a model; its children have shorter limits."""

_NOWHERE = ("cannot be checked: no folder for a configuration can be made", "see runtime_dir")


def examine(case: DoctorCase) -> Iterator[Finding]:
    """Yield the findings of all checks, one by one; those of the host alone if the configuration
    cannot be read.
    """
    asked = cache(lambda: case.ask("worker.llama.inspect", worker=_first(case)))
    host = _HostChecks(case, asked)
    models = _ModelChecks(case, asked)
    of_host: tuple[tuple[str, Check, float], ...] = (
        (packages.PYTHON, host.python, _LIMIT_S),
        (packages.PACKAGES, host.packages, _LIMIT_S),
        ("config", host.config, _LIMIT_S),
        (library.LIBRARY, host.library, _LIMIT_S),
        (library.CPU, host.cpu, _LIMIT_S),
        (gpu.GPU, host.gpu, _LIMIT_S),
        (system.ZMQ, host.zeromq, _LIMIT_S),
        (system.FILES, host.files, _LIMIT_S),
    )
    of_pool: tuple[tuple[str, Check, float], ...] = (
        (keys.KEYS, host.keys, _LIMIT_S),
        (keys.LINKS, host.links, _LIMIT_S),
        (gateway.GATEWAY, host.gateway, _LIMIT_S),
        (system.SHM, host.shm, _LIMIT_S),
        (system.GROUP, host.group, _LIMIT_S),
        (system.OPENMP, host.openmp, _LIMIT_S),
        (system.PORT, host.ports, _LIMIT_S),
        (system.RUNTIME, host.runtime, _LIMIT_S),
        (system.WRITTEN, host.written, _LIMIT_S),
        (model.MODEL, models.files, _LIMIT_S),
        (system.MEMORY, models.memory, _LIMIT_S),
        (system.MLOCK, models.mlock, _LIMIT_S),
        ("placement", host.placement, _LIMIT_S),
        (gpu.LOAD, models.load, case.asked.limit_s * max(1, len(case.workers)) + _LIMIT_S),
    )
    for name, check, limit_s in of_host + of_pool if case.is_readable else of_host:
        yield from guarded(name, check, limit_s)


def guarded(name: str, check: Check, limit_s: float) -> list[Finding]:
    """Run a check on a thread; a check that fails or does not end becomes a finding."""
    found: list[Finding] = []

    def work() -> None:
        try:
            found.extend(check())
        except Exception as error:
            logger.debug("check failed", extra={"check": name}, exc_info=True)
            found.append(warn(name, f"cannot be checked: {error!r}", "report it as a fault"))

    thread = threading.Thread(target=work, name=f"check-{name}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        remedy = "is a file system or a device stuck? See dmesg"
        return [*found, warn(name, f"did not end within {limit_s:g} s", remedy)]
    return found


class _HostChecks:
    """Checks that read no model."""

    def __init__(self, case: DoctorCase, library: Ask) -> None:
        self._case = case
        self._library = library

    def python(self) -> Iterator[Finding]:
        yield packages.check_python(sys.version_info[:3], platform.platform(terse=True))

    def packages(self) -> Iterator[Finding]:
        yield packages.check_packages(probe.requirements(), probe.version_of)

    def config(self) -> Iterator[Finding]:
        if self._case.fault:
            rest = "addresses, keys, models and memory are checked after that"
            remedy = "correct this" if self._case.is_readable else f"correct this; {rest}"
            yield fail("config", self._case.fault, remedy)
        else:
            n = len(self._case.pool.worker)
            yield ok("config", f"valid, {n} worker{'s' * (n != 1)}")

    def library(self) -> Iterator[Finding]:
        yield library.check_library(self._library(), _built(), _flags())

    def cpu(self) -> Iterator[Finding]:
        system_info = str(self._library().facts.get("system", ""))
        yield library.check_cpu(library.features(system_info) or _built(), _flags())

    def gpu(self) -> Iterator[Finding]:
        names, fault = gpu.read_driver(self._case.ask("worker.host.nvml"))
        facts = self._library().facts
        yield gpu.check_gpu(
            gpu.GpuFacts(
                nodes=gpu_files(),
                has_uvm=probe.may_open_uvm(),
                names=names,
                driver_fault=fault,
                offloads=bool(facts.get("offloads")),
                devices=facts.get("devices", ()),
                visible=self._case.environment(_first(self._case)).get("CUDA_VISIBLE_DEVICES"),
                is_wanted=self._case.asked.is_gpu_wanted,
            )
        )

    def zeromq(self) -> Iterator[Finding]:
        asked = self._case.ask("worker.doctor.readers.zeromq")
        yield system.check_zmq(asked, system.endpoints(self._case.pool))

    def keys(self) -> Iterator[Finding]:
        yield from keys.gateway_keys(self._case.pool.gateway)
        for worker in self._case.pool.worker:
            yield from keys.worker_keys(worker)

    def links(self) -> Iterator[Finding]:
        yield from keys.bound_links(self._case.pool.gateway)
        for worker in self._case.pool.worker:
            yield from keys.dialled_links(worker)

    def gateway(self) -> Iterator[Finding]:
        path, keys = write(self._case), configs.dump_keys(self._case.pool.gateway)
        if path is None:
            yield warn(gateway.GATEWAY, *_NOWHERE)
            return
        yield from gateway.check_gateway(self._case.ask("gateway.checks", str(path), stdin=keys))

    def files(self) -> Iterator[Finding]:
        yield system.check_files(*probe.limit(resource.RLIMIT_NOFILE))

    def shm(self) -> Iterator[Finding]:
        devices = [
            len(worker.devices.split(",")) for worker in self._case.workers if worker.devices
        ]
        yield system.check_shm(probe.free_shm(), max(devices, default=0))

    def group(self) -> Iterator[Finding]:
        n_threads = max((worker.n_threads for worker in self._case.workers), default=0)
        yield system.check_group(self._case.host.quota, n_threads, probe.max_tasks())

    def openmp(self) -> Iterator[Finding]:
        yield system.check_openmp(self._case.environ, self._case.workers)

    def ports(self) -> Iterator[Finding]:
        for where, fault in probe.addresses(self._case.pool.gateway):
            yield system.check_port(where, fault)

    def runtime(self) -> Iterator[Finding]:
        configured = self._case.pool.runtime_dir
        path, mode, can = probe.directory("" if configured == MADE_AT_START else configured)
        yield system.check_runtime(str(path), mode, is_writable=can)

    def written(self) -> Iterator[Finding]:
        pool = self._case.pool
        if folder := usage_folder(pool.gateway.usage_dir):
            can = probe.may_hold_files(Path(folder))
            yield system.check_written("usage_dir", folder, is_writable=can)
        if file := pool.log.file:
            can = probe.may_append(Path(file))
            yield system.check_written("log file", file, is_writable=can)

    def placement(self) -> Iterator[Finding]:
        yield ok("placement", str(self._case.host))
        for line in self._case.placements:
            yield ok("placement", line)


class _ModelChecks:
    """Checks of the models."""

    def __init__(self, case: DoctorCase, library: Ask) -> None:
        self._case = case
        self._library = library
        self._header = cache(read_header)

    def files(self) -> Iterator[Finding]:
        workers = self._case.workers
        sources = {worker.hf_repo or worker.model_url: worker.offline for worker in workers}
        for source, offline in sources.items():
            if source:
                yield model.not_here(source, offline=offline)
        for worker in {worker.chat_template: worker for worker in self._case.pool.worker}.values():
            yield from model.check_template(worker)
        here = (worker.model for worker in workers if not worker.model_url)
        for path in dict.fromkeys(here):
            if not path:
                continue  # to be fetched; or the check of the configuration reports its error
            try:
                yield model.check_model(path, self._header(Path(path)))
            except OSError as error:
                text = f"cannot read {path}: {error.strerror}"
                yield fail(model.MODEL, text, "check -m or 'model', and who may read it")

    def memory(self) -> Iterator[Finding]:
        workers = self._readable()
        if not workers:
            return
        weights = {worker.model: self._header(Path(worker.model)).size for worker in workers}
        need = system.WorkerMemory(
            weights=sum(weights.values()),
            mapped=sum(
                weights[path] for path in {worker.model for worker in workers if maps(worker)}
            ),
            copies=sum(weights[worker.model] for worker in workers if not maps(worker)),
            cache=sum(
                planned_cache(self._header(Path(one.model)), one, is_on_gpu=False)
                for one in workers
            ),
            on_gpu=self._on_gpu(workers),
        )
        yield system.check_memory(need, free_memory() or sys.maxsize, group_memory())

    def _on_gpu(self, workers: list[WorkerConfig]) -> int | None:
        """Return the free memory of the GPUs; None if the CPU computes."""
        devices = self._library().facts.get("devices", ())
        free = [int(device["free"]) for device in devices if device["kind"] == "gpu"]
        return sum(free) if free and any(worker.n_gpu_layers for worker in workers) else None

    def mlock(self) -> Iterator[Finding]:
        weights = sum(self._header(Path(path)).size for path in {w.model for w in self._readable()})
        is_wanted = any(
            worker.use_mlock or "mlock" in worker.load_mode for worker in self._case.workers
        )
        limit, _ = probe.limit(resource.RLIMIT_MEMLOCK)
        yield system.check_mlock(limit, weights, is_wanted=is_wanted)

    def load(self) -> Iterator[Finding]:
        if not self._case.asked.loads:
            text = "no model was loaded, because others may need the memory: --load loads it"
            yield ok(gpu.LOAD, text)
            return
        path = write(self._case)
        if path is None:
            yield warn(gpu.LOAD, *_NOWHERE)
            return
        done = set()
        for worker in self._readable():
            placed = (worker.n_gpu_layers, worker.devices)
            same = (worker.model, *placed, worker.sampling, fingerprint(worker))
            if same in done:
                continue
            done.add(same)
            args = ("worker.llama.inspect", str(path), worker.name)
            loaded = self._case.ask(*args, worker=worker, limit_s=self._case.asked.limit_s)
            name, wanted = Path(worker.model).name, self._case.asked.is_gpu_wanted
            yield gpu.check_load(loaded, name, worker.n_gpu_layers, is_wanted=wanted)

    def _readable(self) -> list[WorkerConfig]:
        found = []
        for worker in self._case.workers:
            try:
                if worker.model and not self._header(Path(worker.model)).fault:
                    found.append(worker)
            except OSError:
                continue  # the check `files` reports it
        return found


def _first(case: DoctorCase) -> WorkerConfig | None:
    return case.workers[0] if case.workers else None


def _built() -> frozenset[str]:
    folder = probe.libraries()
    return built_for(folder / "libggml-cpu.so") if folder else frozenset()


def _flags() -> frozenset[str]:
    return library.cpu_flags(text_of(Path("/proc/cpuinfo")))
