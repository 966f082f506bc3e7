"""The notice of `llamapool serve` on a terminal once it answers; it fits on one screen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.config.config import WorkerConfig
from worker.host.placement import Host, uses_gpu

MAX_MODELS = 8
"""Maximum number of listed models; of further ones only the number is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNotice:
    """The facts of a start."""

    url: str = ""
    models: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    """Text about where each loaded model runs."""
    n_workers: int = 0
    has_key: bool = False
    has_page: bool = True
    seconds: float = 0.0
    """Time from the start of the supervisor until every worker was ready."""

    def __str__(self) -> str:
        page = [f"  Chat in a browser: {self.url}"] if self.has_page else []
        return "\n".join(
            [
                "",
                f"llamapool answers on {self.url} after {self.seconds:.1f} s.",
                "",
                *(f"  {row}" for row in self._models()),
                "",
                *page,
                "  A first request:",
                "",
                *(f"  {line}" for line in self._curl()),
                "",
                "Ctrl-C finishes running requests and ends; a second one ends at once.",
                "Start with -v to see the log; `llamapool doctor` tells about this machine.",
                "",
            ]
        )

    def _models(self) -> list[str]:
        shown = self.models[:MAX_MODELS]
        width = max(map(len, shown), default=0)
        rows = [
            f"{name:<{width}}  {self.places.get(name, 'loaded by its first request')}"
            for name in shown
        ]
        if len(self.models) > len(shown):
            rows.append(f"and {len(self.models) - len(shown)} more: GET /v1/models lists them")
        return rows

    def _curl(self) -> list[str]:
        named = f'"model": "{self.models[0]}", ' if len(self.models) > 1 else ""
        body = f'{{{named}"messages": [{{"role": "user", "content": "Hello!"}}]}}'
        key = ["  -H 'Authorization: Bearer YOUR_KEY' \\"] if self.has_key else []
        return [f"curl {self.url}/v1/chat/completions \\", *key, f"  -d '{body}'"]


def places(host: Host, workers: Sequence[WorkerConfig]) -> dict[str, str]:
    """Describe for each model where its workers run: "2 workers on the CPU, 1 thread each"."""
    by_model: dict[str, list[WorkerConfig]] = {}
    for worker in workers:
        by_model.setdefault(worker.alias, []).append(worker)
    return {model: _place(host, group) for model, group in by_model.items()}


def _place(host: Host, workers: Sequence[WorkerConfig]) -> str:
    count = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
    where = list(dict.fromkeys(_device(host, worker) for worker in workers))
    if len(where) > 1:
        return f"{count} on {', '.join(where)}"
    n_threads = max(worker.n_threads for worker in workers)
    each = " each" if len(workers) > 1 else ""
    on_cpu = f", {n_threads} thread{'s' * (n_threads > 1)}{each}" if where == [_CPU] else ""
    return f"{count} on {where[0]}{on_cpu}"


_CPU = "the CPU"


def _device(host: Host, worker: WorkerConfig) -> str:
    if worker.backend == "fake":
        return "the fake backend"
    if not uses_gpu(host, worker):
        return _CPU
    return f"GPU {worker.devices}" if worker.devices else "the GPU"
