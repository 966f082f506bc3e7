"""What clients have set for all tasks: LoRA scales and the system prompt, each with its version.

Pure; used by the link's thread only. The worker owns the settings and sends them to every gateway.
So a gateway that starts learns them, and if two gateways set them at once, the newer version
applies everywhere. An order with an older version applies the newest known one again.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

from protocol.errors import ErrorCode, TaskError
from protocol.wire.facts import SystemPrompt
from protocol.wire.messages import Envelope, Failed, FrameItem, TaskKey, TaskMessage, Terminal
from protocol.wire.sharing import CONFIGURED, MAX_VERSIONS, SettingsReport, is_newer
from protocol.wire.side_tasks import SetLora, SetSystemPrompt
from protocol.wire.values import MAX_SCALE

T = TypeVar("T", SetLora, SetSystemPrompt)

_MAX_SCALES = 1024
"""LoRA adapters of one order; far more than a worker can load."""
_MAX_NAME = 1024
"""Characters of a gateway's id, or of a name in a dialog."""


def impossible(order: TaskMessage) -> TaskError | None:
    """Return why no gateway can mean this setting; None if one can.

    Settings that are applied go to all gateways, and one that receives an impossible setting ends
    its connection to this worker.
    """
    if not isinstance(order, SetLora | SetSystemPrompt):
        return None
    n, gateway = order.version
    if not (0 <= n < MAX_VERSIONS and len(gateway) <= _MAX_NAME):
        return TaskError(ErrorCode.INVALID_REQUEST, "no setting has this version")
    if isinstance(order, SetLora):
        scales = order.scales or ()
        fits = len(scales) <= _MAX_SCALES and all(abs(x) <= MAX_SCALE for _, x in scales)
    else:
        fits = max(len(order.anti_prompt), len(order.assistant_name)) <= _MAX_NAME
    return None if fits else TaskError(ErrorCode.INVALID_REQUEST, "no gateway sets such a thing")


class WorkerSettings:
    """The newest settings: those in force, and those on their way to the engine."""

    def __init__(self) -> None:
        self._lora = SetLora()
        self._system = SetSystemPrompt(prompt="")
        self._due: dict[TaskKey, SetLora | SetSystemPrompt] = {}
        """Orders that were not carried out yet, in their order."""
        self._unasked: set[TaskKey] = set()
        """Those whose gateway is gone."""

    @property
    def orders(self) -> Collection[TaskKey]:
        """Those that were not carried out yet."""
        return self._due.keys()

    @property
    def known(self) -> SettingsReport | None:
        """The settings to send to gateways; None as long as nothing was set."""
        if self._lora.version == self._system.version == CONFIGURED:
            return None
        system = self._system
        return SettingsReport(
            scales=self._lora.scales or (),
            scales_version=self._lora.version,
            system=SystemPrompt(
                prompt=system.prompt,
                anti_prompt=system.anti_prompt,
                assistant_name=system.assistant_name,
            ),
            system_version=system.version,
        )

    def take(self, envelope: Envelope) -> Envelope:
        """Note an order; return the one to carry out, which is never older than what is known."""
        newest: SetLora | SetSystemPrompt
        match envelope.payload:
            case SetLora(scales=scales) as order if scales is not None:
                newest = self._newest(order, self._lora)
            case SetSystemPrompt() as order:
                newest = self._newest(order, self._system)
            case _:
                return envelope
        self._due[envelope.task] = newest
        return envelope._replace(payload=newest)

    def end(self, key: TaskKey, end: Terminal) -> bool:
        """Note that an order was carried out; return whether that has changed anything."""
        order = self._due.pop(key, None)
        self._unasked.discard(key)
        if order is None or isinstance(end, Failed):
            return False
        if isinstance(order, SetLora):
            has_changed = is_newer(order.version, self._lora.version)
            self._lora = order
        else:
            has_changed = is_newer(order.version, self._system.version)
            self._system = order
        return has_changed

    def drop(self, connection: int, kept: Collection[TaskKey]) -> None:
        """Forget the orders of a gateway that is gone, but those that go on all the same."""
        for key in [key for key in self._due if key.connection == connection]:
            if key not in kept:
                del self._due[key]
        self._unasked.update(kept)

    def asked_for(self, items: Sequence[FrameItem]) -> Sequence[FrameItem]:
        """Return messages without the ends of orders whose gateway is gone.

        A gateway that has connected again may not get them: it does not know of the orders.
        """
        if not self._unasked:
            return items
        return [i for i in items if not isinstance(i, Envelope) or i.task not in self._unasked]

    def _newest(self, order: T, held: T) -> T:
        newest = held if is_newer(held.version, order.version) else order
        for setting in self._due.values():
            if isinstance(setting, type(order)) and is_newer(setting.version, newest.version):
                newest = setting
        return newest
