"""Settings that clients have made for a whole model: LoRA scales and the system prompt.

A worker starts with the configured ones, so each new worker gets them before its first task.
"""

from collections.abc import Sequence

from protocol.wire.facts import ModelCard, SystemPrompt
from protocol.wire.messages import Envelope, TaskKey
from protocol.wire.side_tasks import SetLora, SetSystemPrompt

ORDER = TaskKey(-1)
"""Task of a setting that is sent to a new worker: nobody waits for the answer."""

Scales = tuple[tuple[int, float], ...]


class ModelSettings:
    """Settings by model."""

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
        """Return the system prompt of a model: the one set last, or else the configured one."""
        return self._system.get(card.name, card.system_prompt)

    def of(self, model: str) -> Sequence[Envelope]:
        """Return the messages that bring a new worker up to date."""
        orders: list[Envelope] = []
        if model in self._scales:
            orders.append(Envelope(ORDER, SetLora(scales=self._scales[model])))
        if model in self._system:
            orders.append(Envelope(ORDER, system_order(self._system[model])))
        return orders


def system_order(system: SystemPrompt) -> SetSystemPrompt:
    """Return the message that sets a system prompt."""
    return SetSystemPrompt(prompt=system.prompt, anti_prompt=system.anti_prompt)
