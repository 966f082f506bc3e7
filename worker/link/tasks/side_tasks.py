"""Tasks beside generation: saving, restoring and erasing slots, and setting the adapters' scales.

Work on a slot or the backend is done by the engine between two steps (`EngineJob`), once the slot
is idle. Files are written and read on a separate thread: states of long contexts are gigabytes, and
neither heartbeats nor decoding may wait for a disk.
"""

import logging
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.filenames import is_valid_filename
from protocol.wire.messages import Done, Finish, TaskKey, Terminal
from protocol.wire.side_tasks import LoraAdapter, LoraListed, SetLora, SlotActed, SlotAction
from worker.engine.adapters import check_scales
from worker.engine.backend import Backend
from worker.engine.engine import Engine
from worker.engine.media import count_positions
from worker.engine.slot import Slot
from worker.engine.task import EngineJob
from worker.host.topology import usable_memory
from worker.link.tasks import slot_files
from worker.link.tasks.packed_tokens import NOT_A_STATE, SlotFileMismatch
from worker.link.tasks.slot_files import SavedSlot

logger = logging.getLogger(__name__)

_COPIES = 3
"""Copies in memory of a state that is restored: as in the file, without streams, for llama.cpp."""

Work = Callable[[], Terminal | None]

MAX_PENDING = 4
"""Maximum of saves and restores in progress; beyond, a request is refused with 429."""
_OF_WINDOWS = (
    ". A model with sliding windows takes a slot only with the `-np` and `--kv-unified` with which"
    " it was saved"
)
OWNERS = ":keys"
"""Folder of the owners' folders; no valid file name has a colon."""


@dataclass(frozen=True, slots=True)
class _SlotFileTask:
    """A save, restore or erasure with the slot and the file that it is for."""

    key: TaskKey
    action: SlotAction
    slot: int
    path: Path


class SideTasks:
    """Turns messages into jobs of the engine and of the file thread."""

    def __init__(
        self, engine: Engine, backend: Backend, slot_save_path: str, quota_mib: int = 0
    ) -> None:
        """`quota_mib` bounds the folder of each owner; 0 is no limit."""
        self._engine = engine
        self._backend = backend
        self._folder = slot_save_path
        self._quota = quota_mib << 20
        self._pending: set[TaskKey] = set()
        """Actions that have not ended; each may hold the state of a slot."""
        self._due: list[_SlotFileTask] = []
        """Saves that wait until the current one is on the disk; of the engine's thread only."""
        self._is_writing = False
        """The file thread holds a copy. Used by the engine's thread only."""
        self._files = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._file_work: set[Future[None]] = set()
        """What the file thread has not done yet."""
        states = backend.states
        self._stamp = slot_files.StateStamp(
            version=states.version, facts=states.facts, projector=states.projector,
            n_streams=states.n_streams,
        )  # fmt: skip

    def start(self, key: TaskKey, message: SlotAction | SetLora, slot: int = -1) -> None:
        """Begin a task; its terminal message comes from the engine. Raises `TaskError`."""
        if isinstance(message, SetLora):
            check_scales(message.scales or (), len(self._backend.adapters.loaded))
            self._call(key, lambda: self._set_lora(message))
            return
        if not self._folder:
            what = "This server does not support slots action. Start it with `--slot-save-path`"
            raise TaskError(ErrorCode.NOT_SUPPORTED, what)
        if not 0 <= slot < len(self._engine.slots):
            raise InvalidRequest("Invalid slot ID", param="id_slot")
        if message.action == "erase":
            self._call(key, lambda: self._erase(message, slot), slot)
            return
        if message.action not in ("save", "restore"):
            raise InvalidRequest("Invalid action", param="action")
        task = _SlotFileTask(key, message, slot, self._path(message))
        if len(self._pending) >= MAX_PENDING:
            what = "Too many slots are being saved or restored"
            raise TaskError(ErrorCode.OVERLOADED, what, detail={"retry_after_s": 1})
        self._pending.add(key)
        if message.action == "save":
            self._call(key, lambda: self._copy(task), slot)
        else:
            self._on_file_thread(partial(self._read, task))

    def drop(self, connection: int) -> None:
        """Forget what waits and came over a connection: the gateway that wanted it is gone."""
        # The engine's thread removes keys meanwhile, and drops what waits there (`AbortAll`).
        for key in list(self._pending):
            if key.connection == connection:
                self._pending.discard(key)

    def cancel(self, key: TaskKey) -> None:
        """Do nothing more for an action, unless its file is being written."""
        self._pending.discard(key)

    def close(self) -> None:
        """End the file thread, once it has done what it was given."""
        self._files.shutdown(wait=False)

    @property
    def is_at_files(self) -> bool:
        """Whether the file thread works; it uses the backend, also for a gateway that is gone."""
        return bool(self._file_work)

    def settle(self) -> None:
        """Wait until the file thread has done all that it was given."""
        self._files.submit(int).result()

    def _on_file_thread(self, work: Callable[[], None]) -> None:
        future = self._files.submit(work)
        self._file_work.add(future)
        future.add_done_callback(self._file_work.discard)

    def _path(self, message: SlotAction) -> Path:
        # The gateway has checked this; but a file outside the folder must never be touched.
        if not is_valid_filename(message.filename):
            raise InvalidRequest("Invalid filename", param="filename")
        if not message.owner:
            return Path(self._folder) / message.filename
        if not (message.owner.isascii() and message.owner.isalnum()):
            raise InvalidRequest("Invalid owner", param="filename")
        return Path(self._folder) / OWNERS / message.owner / message.filename

    def _call(self, key: TaskKey, work: Work, slot: int = -1) -> None:
        def until_it_ends() -> Terminal | None:
            has_ended = True
            try:
                answer = work()
                has_ended = answer is not None
            finally:
                if has_ended:
                    self._pending.discard(key)
            return answer

        self._engine.submit(EngineJob(key, until_it_ends, slot))

    def _set_lora(self, message: SetLora) -> LoraListed:
        if message.scales is not None:
            named = dict(message.scales)
            n_loaded = len(self._backend.adapters.loaded)
            self._engine.tasks.scales = tuple(named.get(number, 0.0) for number in range(n_loaded))
        loaded = zip(self._backend.adapters.loaded, self._engine.tasks.scales, strict=True)
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
        return LoraListed(adapters=adapters)

    # ---- saving -------------------------------------------------------------------------------

    def _copy(self, task: _SlotFileTask) -> Done | None:
        """Copy the memory of an idle slot; the file thread writes it."""
        if task.key not in self._pending:
            return Done(finish=Finish.CANCELLED)
        if self._is_writing:
            self._due.append(task)
            return None
        start = time.perf_counter()
        slot = self._own_slot(task.action, task.slot)
        if slot.group_start:
            reason = "a slot whose context was extended by --grp-attn-n cannot be saved"
            raise TaskError(ErrorCode.NOT_SUPPORTED, reason)
        state = self._backend.states.copy(slot.id)
        saved = SavedSlot(
            list(slot.tokens), state, slot.scales, task.action.salt, slot.id, chain=slot.chain,
            media=slot.media,
        )  # fmt: skip
        self._is_writing = True
        self._on_file_thread(partial(self._write, task, saved, start))
        return None

    def _own_slot(self, action: SlotAction, slot_id: int) -> Slot:
        """Return an action's slot; raises `InvalidRequest` if it holds another owner's prompt."""
        slot = self._engine.slots[slot_id]
        if slot.tokens and slot.salt != action.salt:
            what = f"slot {slot_id} holds a prompt of another API key or cache_salt"
            raise InvalidRequest(what, param="id_slot")
        return slot

    def _written(self, key: TaskKey, work: Callable[[], SlotActed]) -> None:
        """Answer with the outcome of a save, and begin the next one.

        Each that waits is tried, since the first may fail, or wait for its slot. One is copied.
        """

        def end() -> SlotActed:
            self._is_writing = False
            due, self._due = self._due, []
            for task in due:
                self._call(task.key, partial(self._copy, task), task.slot)
            return work()

        self._call(key, end)

    def _write(self, task: _SlotFileTask, saved: SavedSlot, start: float) -> None:
        try:
            self._check_quota(task, saved)
            size = slot_files.write(task.path, saved, self._stamp)
        except TaskError as error:
            self._fail(task.key, error)
            return
        except OSError as error:
            logger.error(
                "slot not saved",
                extra={
                    "task": task.key.id,
                    "slot": task.slot,
                    "file": task.path,
                    "cause": error.strerror,
                    "action": "the request gets 500",
                    "hint": "is the disk full? may this user write there?",
                },
            )
            reason = f"Unable to save slot: {error.strerror}"
            self._fail(task.key, TaskError(ErrorCode.INTERNAL, reason))
            return
        except Exception as error:
            logger.exception(
                "slot not saved",
                extra={
                    "task": task.key.id,
                    "slot": task.slot,
                    "action": "the request gets 500",
                    "hint": "report it as a fault",
                },
            )
            self._fail(task.key, TaskError(ErrorCode.INTERNAL, f"Unable to save slot: {error}"))
            return
        self._written(task.key, lambda: _acted(len(saved.tokens), size, start))

    def _check_quota(self, task: _SlotFileTask, saved: SavedSlot) -> None:
        """Make the owner's folder; raises `InvalidRequest` if the file exceeds the quota."""
        if not task.action.owner:
            return
        folder = task.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        size = slot_files.folder_size(folder, task.path.name) + len(saved.state)
        if self._quota and size > self._quota:
            what = f"the saved slots of this API key would take more than {self._quota >> 20} MiB"
            raise InvalidRequest(what, param="filename")

    # ---- restoring ----------------------------------------------------------------------------

    def _read(self, task: _SlotFileTask) -> None:
        """Read and check a file before the engine gets it."""
        start = time.perf_counter()
        card = self._backend.card
        limits = slot_files.SlotLimits(
            n_ctx=card.n_ctx,
            n_vocab=card.n_vocab,
            n_bytes=usable_memory() // _COPIES or sys.maxsize,
            open_pieces=self._backend.open_pieces,
        )
        saved: SavedSlot | SlotFileMismatch
        try:
            saved = slot_files.read(task.path, self._stamp, limits, task.action.salt)
        except SlotFileMismatch as error:
            saved = error
        except Exception as error:
            logger.exception(
                "saved slot not read",
                extra={
                    "task": task.key.id,
                    "slot": task.slot,
                    "action": "the request gets 400",
                    "hint": "can this user read the file? if it can, save the slot again",
                },
            )
            saved = SlotFileMismatch(str(error) or type(error).__name__)
        read_s = time.perf_counter() - start
        # One that was cancelled ends now, and does not hold a state until its slot is idle.
        slot = task.slot if task.key in self._pending else -1
        self._call(task.key, lambda: self._put(task, saved, read_s), slot)

    def _put(
        self, task: _SlotFileTask, saved: SavedSlot | SlotFileMismatch, read_s: float
    ) -> SlotActed | Done:
        """Replace the content of an idle slot; it is empty if that fails."""
        if task.key not in self._pending:
            return Done(finish=Finish.CANCELLED)
        start = time.perf_counter() - read_s
        slot = self._engine.slots[task.slot]
        self._engine.cache.empty(slot)
        if isinstance(saved, SlotFileMismatch):
            raise _not_restored(str(saved))
        if not self._backend.states.put(slot.id, saved.state, count_positions(saved.tokens)):
            states = self._backend.states
            raise _not_restored(NOT_A_STATE + (_OF_WINDOWS if states.needs_checkpoints else ""))
        slot.append(saved.tokens)
        slot.media = saved.media
        slot.salt = saved.salt
        slot.scales = saved.scales or (0.0,) * len(self._backend.adapters.loaded)
        self._engine.cache.note(slot)
        self._engine.cache.report(slot, saved.chain)
        return _acted(len(saved.tokens), saved.size, start)

    # ---- erasing ------------------------------------------------------------------------------

    def _erase(self, action: SlotAction, slot_id: int) -> SlotActed:
        slot = self._own_slot(action, slot_id) if action.owner else self._engine.slots[slot_id]
        n_tokens = self._engine.cache.empty(slot)
        return _acted(n_tokens, 0, time.perf_counter())

    def _fail(self, key: TaskKey, error: TaskError) -> None:
        """Answer that a save has failed."""

        def fail() -> SlotActed:
            raise error

        self._written(key, fail)


def _acted(n_tokens: int, n_bytes: int, start: float) -> SlotActed:
    time_ms = (time.perf_counter() - start) * 1e3
    return SlotActed(n_tokens=n_tokens, n_bytes=n_bytes, time_ms=time_ms)


def _not_restored(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to restore slot: {reason}", param="filename")
