"""Tasks on the side: saving, restoring and erasing slots, and the adapters' standing scales.

The link hands them in; what touches a slot or the backend is done by the engine between two steps
(`Call`), once the slot is idle. Files are written and read on a thread of their own: the states of
long contexts are gigabytes, and neither heartbeats nor decoding may wait for a disk.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.filenames import is_valid_filename
from protocol.messages import TaskMessage, Terminal
from protocol.side_tasks import LoraAdapter, LoraListed, SetLora, SlotActed, SlotAction
from worker.engine.adapters import check_scales
from worker.engine.backend import Backend
from worker.engine.engine import Engine
from worker.engine.task import Call
from worker.link import slot_files
from worker.link.slot_files import NOT_A_STATE, Saved, Unfit

logger = logging.getLogger(__name__)

Work = Callable[[], Terminal | None]


class SideTasks:
    """Turns messages of the wire into calls of the engine and work of the file thread."""

    def __init__(self, engine: Engine, backend: Backend, slot_save_path: str) -> None:
        self._engine = engine
        self._backend = backend
        self._folder = slot_save_path
        self._files = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._stamp = slot_files.Stamp(version=backend.states.version, facts=backend.states.facts)

    def start(self, message: SlotAction | SetLora) -> None:
        """Begin a task; its terminal message comes from the engine. Raises `TaskError`."""
        if isinstance(message, SetLora):
            check_scales(message.scales or (), len(self._backend.adapters.loaded))
            self._call(message, lambda: self._set_lora(message))
            return
        if not self._folder:
            what = "This server does not support slots action. Start it with `--slot-save-path`"
            raise TaskError(ErrorCode.NOT_SUPPORTED, what)
        if not 0 <= message.slot < len(self._engine.slots):
            raise InvalidRequest("Invalid slot ID", param="id_slot")
        match message.action:
            case "save":
                path = self._path(message)
                self._call(message, lambda: self._copy(message, path), message.slot)
            case "restore":
                path = self._path(message)
                self._files.submit(self._read, message, path)
            case "erase":
                self._call(message, lambda: self._erase(message), message.slot)
            case _:
                raise InvalidRequest("Invalid action", param="action")

    def close(self) -> None:
        """End the file thread, once it has done what it was given."""
        self._files.shutdown(wait=False)

    def settle(self) -> None:
        """Wait until the file thread has done all that it was given."""
        self._files.submit(int).result()

    def _path(self, message: SlotAction) -> Path:
        # The gateway has checked this; but a file outside the folder must never be touched.
        if not is_valid_filename(message.filename):
            raise InvalidRequest("Invalid filename", param="filename")
        return Path(self._folder) / message.filename

    def _call(self, message: TaskMessage, work: Work, slot: int = -1) -> None:
        self._engine.submit(Call(message.task_id, message.attempt, work, slot))

    def _set_lora(self, message: SetLora) -> LoraListed:
        if message.scales is not None:
            named = dict(message.scales)
            n_loaded = len(self._backend.adapters.loaded)
            self._engine.scales = tuple(named.get(number, 0.0) for number in range(n_loaded))
        loaded = zip(self._backend.adapters.loaded, self._engine.scales, strict=True)
        adapters = tuple(
            LoraAdapter(
                id=number,
                path=adapter.path,
                scale=scale,
                task_name=adapter.task_name,
                prompt_prefix=adapter.prompt_prefix,
            )
            for number, (adapter, scale) in enumerate(loaded)
        )
        return LoraListed(task_id=message.task_id, attempt=message.attempt, adapters=adapters)

    # ---- saving -------------------------------------------------------------------------------

    def _copy(self, message: SlotAction, path: Path) -> None:
        """Take the memory of an idle slot; the file thread goes on with it."""
        start = time.perf_counter()
        slot = self._engine.slots[message.slot]
        if any(token < 0 for token in slot.tokens):
            reason = "a slot with images or sounds in its prompt cannot be saved"
            raise TaskError(ErrorCode.NOT_SUPPORTED, reason)
        if slot.n_saved:
            reason = "a slot whose context was extended by grouping cannot be saved"
            raise TaskError(ErrorCode.NOT_SUPPORTED, reason)
        saved = Saved(list(slot.tokens), self._backend.states.copy(slot.id), slot.scales)
        self._files.submit(self._write, message, path, saved, start)

    def _write(self, message: SlotAction, path: Path, saved: Saved, start: float) -> None:
        try:
            size = slot_files.write(path, saved, self._stamp)
        except OSError as error:
            logger.error("slot not saved slot=%d reason=%s", message.slot, error.strerror)
            reason = f"Unable to save slot: {error.strerror}"
            self._fail(message, TaskError(ErrorCode.INTERNAL, reason))
            return
        except Exception as error:
            logger.exception("slot not saved slot=%d", message.slot)
            self._fail(message, TaskError(ErrorCode.INTERNAL, f"Unable to save slot: {error}"))
            return
        self._call(message, lambda: _acted(message, len(saved.tokens), size, start))

    # ---- restoring ----------------------------------------------------------------------------

    def _read(self, message: SlotAction, path: Path) -> None:
        """Judge a file before the engine hears of it."""
        start = time.perf_counter()
        card = self._backend.card
        limits = slot_files.Limits(n_ctx=card.n_ctx, n_vocab=card.n_vocab)
        saved: Saved | Unfit
        try:
            saved = slot_files.read(path, self._stamp, limits)
        except Unfit as error:
            saved = error
        except Exception as error:
            logger.exception("saved slot not read slot=%d", message.slot)
            saved = Unfit(str(error))
        read_s = time.perf_counter() - start
        self._call(message, lambda: self._put(message, saved, read_s), message.slot)

    def _put(self, message: SlotAction, saved: Saved | Unfit, read_s: float) -> SlotActed:
        """Replace what an idle slot holds; it is empty if that fails."""
        start = time.perf_counter() - read_s
        slot = self._engine.slots[message.slot]
        self._engine.cache.empty(slot)
        if isinstance(saved, Unfit):
            raise _not_restored(str(saved))
        if not self._backend.states.put(slot.id, saved.state, len(saved.tokens)):
            raise _not_restored(NOT_A_STATE)
        slot.tokens += saved.tokens
        slot.scales = saved.scales or (0.0,) * len(self._backend.adapters.loaded)
        self._engine.cache.note(slot)
        return _acted(message, len(saved.tokens), saved.size, start)

    # ---- erasing ------------------------------------------------------------------------------

    def _erase(self, message: SlotAction) -> SlotActed:
        slot = self._engine.slots[message.slot]
        n_tokens = self._engine.cache.empty(slot)
        return _acted(message, n_tokens, 0, time.perf_counter())

    def _fail(self, message: SlotAction, error: TaskError) -> None:
        def fail() -> Terminal:
            raise error

        self._call(message, fail)


def _acted(message: SlotAction, n_tokens: int, n_bytes: int, start: float) -> SlotActed:
    return SlotActed(
        task_id=message.task_id,
        attempt=message.attempt,
        slot=message.slot,
        n_tokens=n_tokens,
        n_bytes=n_bytes,
        time_ms=(time.perf_counter() - start) * 1e3,
    )


def _not_restored(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to restore slot: {reason}", param="filename")
