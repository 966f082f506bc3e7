"""Settings that clients have made for a whole model: LoRA scales and the system prompt.

They live in the workers, each with a version; the newest holds everywhere. A gateway learns them
from the workers that know them, and sends them to those that know an older one: a worker that was
started again begins with what is configured, and gets them before its first task.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.wire.facts import ModelCard, SystemPrompt
from protocol.wire.messages import Envelope, TaskKey
from protocol.wire.sharing import CONFIGURED, SettingsReport, Version, following, is_newer
from protocol.wire.side_tasks import SetLora, SetSystemPrompt

_LORA_ID, _SYSTEM_ID = -1, -2
ORDERS = {_LORA_ID: "LoRA scales", _SYSTEM_ID: "system prompt"}
"""Task ids of settings that are sent to workers, and their names; no answer is awaited."""

Scales = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class _Known:
    """Versions that a worker was sent, or has reported."""

    model: str
    scales: Version = CONFIGURED
    system: Version = CONFIGURED
    ordered: set[int] = field(default_factory=set)
    """Numbers of the orders that it was sent and has not refused."""


class ModelSettings:
    """The newest settings by model, and which of them each worker has."""

    def __init__(self, gateway: str = "") -> None:
        """`gateway` is the id of this process: it decides between settings made at once."""
        self._gateway = gateway
        self._scales: dict[str, SetLora] = {}
        self._system: dict[str, SetSystemPrompt] = {}
        self._workers: dict[str, _Known] = {}
        """By the keys of their connections."""
        self._orders = itertools.count()

    def set_scales(self, model: str, scales: Scales) -> SetLora:
        """Set the scales of a model's adapters; return the order for its workers."""
        version = following(_version(self._scales.get(model)), self._gateway)
        order = self._scales[model] = SetLora(scales=scales, version=version)
        return order

    def set_system_prompt(self, model: str, system: SystemPrompt) -> SetSystemPrompt:
        """Set the system prompt of a model; return the order for its workers."""
        version = following(_version(self._system.get(model)), self._gateway)
        order = self._system[model] = _order(system, version)
        return order

    def system_prompt(self, card: ModelCard) -> SystemPrompt:
        """Return the system prompt of a model: the one set last, or else the configured one."""
        order = self._system.get(card.name)
        if order is None:
            return card.system_prompt
        return SystemPrompt(
            prompt=order.prompt,
            anti_prompt=order.anti_prompt,
            assistant_name=order.assistant_name,
        )

    def joined(self, key: str, model: str) -> Sequence[Envelope]:
        """Return the messages that bring a new worker up to date."""
        known = self._workers[key] = _Known(model)
        return self._missing(known)

    def left(self, key: str) -> None:
        """Forget a worker that is lost."""
        self._workers.pop(key, None)

    def sent(self, key: str, order: SetLora | SetSystemPrompt) -> None:
        """Note that a worker gets an order."""
        if (known := self._workers.get(key)) is None:
            return
        if isinstance(order, SetLora):
            known.scales = _newest(known.scales, order.version)
        else:
            known.system = _newest(known.system, order.version)

    def was_refused(self, key: str, order: TaskKey) -> bool:
        """Note that a worker has refused an order; false if it has none to refuse."""
        known = self._workers.get(key)
        if known is None or order.attempt not in known.ordered:
            return False
        known.ordered.remove(order.attempt)
        return True

    def reported(self, key: str, reported: SettingsReport) -> None:
        """Take in what a worker has, if it is newer than what is known here."""
        if (known := self._workers.get(key)) is None:
            return
        known.scales = _newest(known.scales, reported.scales_version)
        known.system = _newest(known.system, reported.system_version)
        lora = self._scales.get(known.model)
        if is_newer(reported.scales_version, _version(lora)):
            self._scales[known.model] = SetLora(
                scales=reported.scales, version=reported.scales_version
            )
        system = self._system.get(known.model)
        if is_newer(reported.system_version, _version(system)):
            self._system[known.model] = _order(reported.system, reported.system_version)

    def due(self) -> list[tuple[str, Envelope]]:
        """Return what workers have still to be sent, because others knew something newer."""
        return [
            (key, order) for key, known in self._workers.items() for order in self._missing(known)
        ]

    def _missing(self, known: _Known) -> list[Envelope]:
        orders: list[Envelope] = []
        lora, system = self._scales.get(known.model), self._system.get(known.model)
        if lora is not None and is_newer(lora.version, known.scales):
            known.scales = lora.version
            orders.append(Envelope(self._key(_LORA_ID, known), lora))
        if system is not None and is_newer(system.version, known.system):
            known.system = system.version
            orders.append(Envelope(self._key(_SYSTEM_ID, known), system))
        return orders

    def _key(self, task_id: int, known: _Known) -> TaskKey:
        number = next(self._orders)
        known.ordered.add(number)
        return TaskKey(task_id, number)


def _version(order: SetLora | SetSystemPrompt | None) -> Version:
    return order.version if order is not None else CONFIGURED


def _newest(one: Version, other: Version) -> Version:
    return one if is_newer(one, other) else other


def _order(system: SystemPrompt, version: Version) -> SetSystemPrompt:
    return SetSystemPrompt(
        prompt=system.prompt,
        anti_prompt=system.anti_prompt,
        assistant_name=system.assistant_name,
        version=version,
    )
