"""Models that were unloaded: no worker is started for them, unless one says `Hello` again. Pure."""

from collections.abc import Mapping

from gateway.pool.workers.worker import Worker
from protocol.errors import ErrorCode, TaskError


class UnloadedModels:
    """The models that were unloaded, and why their tasks fail."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = workers
        self._whys: dict[str, str] = {}

    def add(self, model: str, why: str) -> None:
        """Note a model that was unloaded; it may still have workers here."""
        self._whys[model] = why

    def discard(self, model: str) -> None:
        """Note a worker that loads a model."""
        self._whys.pop(model, None)

    def is_gone(self, model: str) -> bool:
        """Return whether the last worker of an unloaded model is gone."""
        return model in self._whys and all(
            worker.model != model for worker in self._workers.values()
        )

    def refusal(self, model: str) -> TaskError:
        """Return the error of its tasks."""
        return TaskError(ErrorCode.UNAVAILABLE, f"model '{model}' {self._whys[model]}")
