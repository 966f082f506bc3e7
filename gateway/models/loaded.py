"""What the pool knows of the models that are loaded."""

import time
from collections.abc import Mapping
from typing import Any

from gateway.api.llamacpp.views import model as shown_model
from gateway.pool.pool import Pool
from gateway.pool.status import ModelState
from protocol.errors import loading
from protocol.wire.facts import ModelCard


class LoadedModels:
    """What the model manager reads from the pool, and changes in it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._created = int(time.time())

    def card(self, model: str) -> ModelCard:
        """Return the card of a loaded model; raises `TaskError` if it was just unloaded."""
        card = self._find(model)
        if card is None:
            raise loading()
        return card

    def shown(self, model: str) -> Mapping[str, Any]:
        """Return the entry of a loaded model in the list; empty if the pool does not know it."""
        card = self._find(model)
        return shown_model(card, self._created) if card is not None else {}

    def sleeps(self, model: str) -> bool:
        """Return whether a model's workers sleep."""
        card = self._find(model)
        return card is not None and self._pool.status.state(card.name) is ModelState.SLEEPING

    def abandon(self, model: str) -> None:
        """Fail the tasks that wait for a slot of a model, because it was unloaded."""
        self._pool.transport.abandon(model)

    def _find(self, model: str) -> ModelCard | None:
        return next((card for card in self._pool.status.cards() if card.name == model), None)
