"""Standing orders: what every worker of a model must know, now and whenever one comes (back).

Clients change two things for a whole model: the scales of its LoRA adapters and its system prompt.
A worker that starts anew begins with the configured ones, so it is told before its first task.
"""

from collections.abc import Sequence

from protocol.wire.facts import ModelCard, SystemPrompt
from protocol.wire.messages import Envelope, TaskKey
from protocol.wire.side_tasks import SetLora, SetSystemPrompt

ORDER = TaskKey(-1)
"""Of what a new worker is told: nobody waits for its answer."""

Scales = tuple[tuple[int, float], ...]


class ModelSettings:
    """What clients have set, by model."""

    def __init__(self) -> None:
        self._scales: dict[str, Scales] = {}
        self._system: dict[str, SystemPrompt] = {}

    def __repr__(self) -> str:
        return f"<ModelSettings lora={sorted(self._scales)} system={sorted(self._system)}>"

    def set_scales(self, model: str, scales: Scales) -> None:
        """Remember the scales of a model's adapters."""
        self._scales[model] = scales

    def set_system_prompt(self, model: str, system: SystemPrompt) -> None:
        """Remember the system prompt of a model."""
        self._system[model] = system

    def system_prompt(self, card: ModelCard) -> SystemPrompt:
        """Return what holds for a model: what was set last, or what it was configured with."""
        return self._system.get(card.name, card.system_prompt)

    def of(self, model: str) -> Sequence[Envelope]:
        """Return what to tell a new worker."""
        orders: list[Envelope] = []
        if model in self._scales:
            orders.append(Envelope(ORDER, SetLora(scales=self._scales[model])))
        if model in self._system:
            orders.append(Envelope(ORDER, system_order(self._system[model])))
        return orders


def system_order(system: SystemPrompt) -> SetSystemPrompt:
    """Return the message that sets a system prompt."""
    return SetSystemPrompt(prompt=system.prompt, anti_prompt=system.anti_prompt)
