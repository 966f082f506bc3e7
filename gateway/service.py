"""What every endpoint needs: the configuration, the pool, the metrics, the limits."""

import time
from dataclasses import dataclass, field
from typing import Any

from gateway.body import MIB, BodyLimits
from gateway.metrics import Metrics
from gateway.pool import Pool
from protocol.config import GatewayConfig
from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.facts import ModelCard
from protocol.schema import json_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The gateway as its endpoints see it."""

    config: GatewayConfig
    pool: Pool
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def body_limits(self) -> BodyLimits:
        """Return how large and how slow a body may be."""
        config = self.config
        return BodyLimits(
            max_bytes=config.max_body_mib * MIB,
            patience_s=min(config.limits.body_patience_s, config.timeout_s),
            fields=config.limits,
        )

    def card(self, model: Any) -> ModelCard:
        """Find the model that a request names; raises `TaskError`."""
        if model is not None and not isinstance(model, str):
            message = f"Field 'model': type must be string, but is {json_type(model)}"
            raise InvalidRequest(message, param="model")
        return self.pool.card(model)

    def ready_cards(self) -> tuple[ModelCard, ...]:
        """List the models; raises `TaskError` while there is none."""
        cards = self.pool.cards()
        if not cards:
            raise TaskError(ErrorCode.UNAVAILABLE, "Loading model")
        return cards

    async def n_slots(self, card: ModelCard) -> int:
        """Count the slots of a model over all workers."""
        if len(self.pool.cards()) > 1:
            return len(await self.pool.slots(card.name))
        health = self.pool.health()
        return health.slots_idle + health.slots_processing
