"""Calls to workers beside their slots: what their slots do, adapters, system prompts.

The gateway's own calls need no credit and go to one worker each, whatever that one has to do.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.model_settings import ModelSettings, Scales
from gateway.pool.status import guess_slots
from gateway.pool.tasks.spec import TaskSpec
from gateway.pool.tasks.stream import TaskStream
from gateway.pool.workers.worker import Worker, WorkerState
from protocol.errors import ErrorCode, TaskError
from protocol.wire import facts
from protocol.wire import messages as m
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import EndReasoning, ReasoningEnded, SetLora, SetSystemPrompt

_INSPECT_LIMIT_S = 2.0
"""Seconds for a worker to describe its slots, which it does between two steps."""
_CALL_LIMIT_S = 10.0
"""Maximum seconds for a worker to report its slots, or to apply a setting."""
_COMPLETE_LIMIT_S = 50.0
"""Less than the supervisor's time limit of a golden prompt, so that it gets the cause."""
_LOOK_AGAIN_S = 0.05
"""Seconds between two looks for a worker that is to connect."""
_REFUSALS = (ErrorCode.INVALID_REQUEST, ErrorCode.CONTEXT_EXCEEDED, ErrorCode.NOT_SUPPORTED)

Submit = Callable[[m.TaskMessage, TaskSpec], TaskStream]


class WorkerCalls:
    """Asks single workers, or all workers of a model."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: ModelSettings,
        submit: Submit,
        next_id: Callable[[], int],
        *,
        load_limit_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._submit = submit
        self._next_id = next_id
        self._load_limit_s = load_limit_s
        """How long a worker that sleeps may take: it loads its model first."""
        self._inspections: dict[str, asyncio.Task[m.Inspected | None]] = {}
        """Calls about slots that are under way, by the worker's key."""

    async def end_reasoning(self, stream: TaskStream) -> bool:
        """End the reasoning of a running task; false if the task has just ended."""
        worker = self._dispatcher.workers.get(stream.task.worker)
        if worker is None:
            return False
        call = EndReasoning(target=stream.task_id)
        try:
            answer = await self._call(worker, call, _CALL_LIMIT_S)
        except TimeoutError:
            raise TaskError(ErrorCode.UNAVAILABLE, "The worker does not answer") from None
        return isinstance(answer, ReasoningEnded) and answer.is_running

    async def set_lora(self, model: str, scales: Scales) -> None:
        """Set the scales of a model's adapters in every worker, also in those to come."""
        await self._call_all(self._settings.set_scales(model, scales), model)

    async def set_system_prompt(self, card: facts.ModelCard, system: facts.SystemPrompt) -> None:
        """Set the system prompt in every worker of a model; raises `TaskError` if it is too long.

        After an error all workers have the one that they had before.
        """
        before = self._settings.system_prompt(card)
        if system == before:
            return
        try:
            await self._call_all(self._settings.set_system_prompt(card.name, system), card.name)
        except TaskError:
            await self._call_all(self._settings.set_system_prompt(card.name, before), card.name)
            raise

    async def complete(self, name: str, prompt: str, n_predict: int) -> str:
        """Ask one worker for its greedy answer to a prompt, also if it is held.

        It needs no credit, and neither uses nor leaves anything in the cache. Raises `TaskError`
        and `TimeoutError`.
        """
        async with asyncio.timeout(_COMPLETE_LIMIT_S):
            worker = await self._connected(name)
            params = SamplingParams(
                temperature=0.0, n_predict=n_predict, cache_prompt=False, seed=0
            )
            spec = TaskSpec(
                task_id=self._next_id(),
                model=worker.model,
                takes_credit=False,
                worker=name,
                is_bound=True,
            )
            stream = self._submit(m.Generate(prompt=prompt, params=params), spec)
            try:
                return await _text_of(stream)
            finally:
                stream.close()

    async def _connected(self, name: str) -> Worker:
        """Wait until a worker of this name is ready, or held."""
        while True:
            for worker in self._dispatcher.workers.values():
                if worker.name == name and worker.state is WorkerState.READY:
                    return worker
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def slots(
        self, model: str | None = None
    ) -> tuple[tuple[facts.SlotReport, facts.ModelCard], ...]:
        """Ask the workers what their slots do; for a worker without an answer, report the credits.

        A worker that sleeps is not asked, so that a look neither wakes it nor keeps it awake.
        """
        workers = [
            worker
            for worker in self._dispatcher.workers.values()
            if worker.card is not None and model in (None, worker.model)
        ]
        reports = await asyncio.gather(*map(self._report, workers))
        rows = [
            (report, worker.card)
            for worker, slots in zip(workers, reports, strict=True)
            for report in slots
            if worker.card is not None
        ]
        return tuple(sorted(rows, key=lambda row: row[0].id))

    async def _report(self, worker: Worker) -> tuple[facts.SlotReport, ...]:
        answer = await self._inspect(worker)
        base = self._dispatcher.slots.base(worker.name)
        # An id of another number could be too large for JSON.
        if answer is not None and {slot.id for slot in answer.slots} <= {*range(worker.n_slots)}:
            return tuple(replace(slot, id=base + slot.id) for slot in answer.slots)
        return guess_slots(worker, base)

    async def _inspect(self, worker: Worker) -> m.Inspected | None:
        """Ask a worker that is awake; requests at the same time share one call."""
        if not worker.is_ready or worker.is_sleeping:
            return None
        call = self._inspections.get(worker.key)
        if call is None:
            call = asyncio.create_task(self._ask_slots(worker))
            self._inspections[worker.key] = call
            call.add_done_callback(lambda _: self._inspections.pop(worker.key))
        return await asyncio.shield(call)

    async def _ask_slots(self, worker: Worker) -> m.Inspected | None:
        try:
            answer = await self._call(worker, m.Inspect(), _INSPECT_LIMIT_S)
        except (TimeoutError, TaskError):
            return None
        return answer if isinstance(answer, m.Inspected) else None

    async def _call_all(self, request: SetLora | SetSystemPrompt, model: str) -> None:
        """Call each ready worker; one that is lost gets the settings when it comes back."""
        workers = [w for w in self._dispatcher.workers.values() if w.is_ready and w.model == model]
        for worker in workers:
            self._settings.sent(worker.key, request)
        calls = (self._call(worker, request, _CALL_LIMIT_S) for worker in workers)
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, TaskError) and answer.code in _REFUSALS:
                raise answer

    async def _call(self, worker: Worker, request: m.TaskMessage, limit_s: float) -> m.Terminal:
        """Call one worker; raises `TimeoutError` and `TaskError`."""
        spec = TaskSpec(
            task_id=self._next_id(), model=worker.model, takes_credit=False, worker=worker.name
        )
        stream = self._submit(request, spec)
        try:
            async with asyncio.timeout(self._load_limit_s if worker.is_sleeping else limit_s):
                return await stream.result()
        finally:
            stream.close()


async def _text_of(stream: TaskStream) -> str:
    """Return the whole text of a generation; raises `TaskError`."""
    text: list[str] = []
    while not isinstance(message := await stream.receive(), m.Terminal):
        if isinstance(message, m.Delta):
            text.append(message.text)
    return "".join(text)
