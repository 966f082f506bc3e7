"""The answers of /v1/responses: the events of a stream and the object in one piece.

The events and their order are llama-server's. Their fields are llama-server's too, and those that
OpenAI's client needs: the numbers of events, outputs and parts.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson

from gateway.api.openai.responses.objects import (
    Ids,
    call_id,
    call_item,
    incomplete_details,
    message_item,
    reasoning_item,
    text_part,
    usage,
)
from gateway.api.reply import TaskOutcome, error_event, whole_calls
from gateway.api.results import figures
from gateway.api.results.figures import n_alternatives, progress_fields, timings, token_probs
from gateway.api.sse import named_event
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Progress, Started, ToolCallDelta
from protocol.wire.sampling import SamplingParams

_Data = dict[str, Any]


class ResponsesReply:
    """Writes the answers of OpenAI's responses API; see `gateway.api.reply.ResponseFormatter`."""

    is_read_by_chunk: ClassVar[bool] = False

    def __init__(
        self, card: ModelCard, params: SamplingParams, *, echo: Mapping[str, Any], n_top: int
    ) -> None:
        self._card = card
        self._params = params
        self._echo = echo
        self._n_top = n_top
        self._ids = Ids()
        self._n_events = 0
        self._outputs: list[str] = []
        """Ids of items in the order in which they began."""
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._n_reasoning = 0
        self._calls: list[ToolCallDelta] = []
        self._call_ids: dict[int, str] = {}
        self._probs: list[TokenProb] = []
        """Those that the last events repeat, up to `MANY`. More are in the events of their tokens
        only: a million in each of four events took the loop 1.7 s."""
        self._n_alternatives = 0
        self._unreported: list[TokenProb] = []
        """Those of an incomplete character, for the event of the next text."""

    def started(self, index: int, message: Started) -> None:
        """Do nothing: a response names no slot."""

    def progress(self, index: int, message: Progress) -> bytes:
        """Return the frame that tells how far the prompt is read."""
        events = self._opening() or [self._lifecycle("response.in_progress")]
        events[-1] |= progress_fields(message, self._params)
        return self._frame(events)

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of what was added, item by item."""
        events = self._opening()
        if message.reasoning:
            events += self._add_reasoning(message)
        self._add_probs(message)
        if message.text:
            events += self._add_text(message)
        for piece in message.tool_calls:
            events += self._add_call(piece)
        if events and message.timings is not None:
            events[-1]["timings"] = timings(message.timings)
        return self._frame(events)

    def done(self, index: int, message: Done) -> bytes:
        """Return the frames that end all items, and the whole response."""
        outcome = TaskOutcome(
            text="".join(self._texts),
            tokens=(),
            probs=tuple(self._probs),
            done=message,
            reasoning="".join(self._reasoning),
            n_reasoning=self._n_reasoning,
            tool_calls=whole_calls(self._calls),
        )
        items = self._items(outcome)
        items.sort(key=lambda item: self._output(item["id"]))
        events = self._opening()
        for item in items:
            events += self._ends(item)
        whole = self._whole(outcome, items)
        data = {"type": "response.completed", "response": whole}
        events.append(data | {"timings": timings(message.timings)})
        return self._frame(events)

    def end(self) -> bytes:
        """Return nothing: `response.completed` was the last event."""
        return b""

    def failed(self, body: Mapping[str, Any]) -> bytes:
        """Return the frames of an error after the first byte: OpenAI's, then llama-server's."""
        fault = body["error"]
        response = self._response("failed") | {
            "error": {"code": "server_error", "message": fault["message"]}
        }
        last = {"type": "response.failed", "response": response}
        return self._frame([*self._opening(), last]) + error_event(body)

    def result(self, outcomes: Sequence[TaskOutcome]) -> Any:
        """Return the `response` object."""
        (outcome,) = outcomes
        return self._whole(outcome, self._items(outcome))

    def _add_reasoning(self, message: Delta) -> list[_Data]:
        events = []
        self._n_reasoning = message.n_predicted
        if not self._reasoning:
            item = reasoning_item(self._ids, None, "in_progress")
            events.append(self._added(item))
        self._reasoning.append(message.reasoning)
        place = self._place(self._ids.reasoning)
        return [
            *events,
            {"type": "response.reasoning_text.delta", "delta": message.reasoning, **place},
        ]

    def _add_text(self, message: Delta) -> list[_Data]:
        events = []
        if not self._texts:
            events.append(self._added(message_item(self._ids, (), "in_progress")))
            place = self._place(self._ids.message)
            part = {"type": "response.content_part.added", **place, "part": text_part("")}
            events.append(part)
        self._texts.append(message.text)
        place = self._place(self._ids.message)
        text = {"type": "response.output_text.delta", **place, "delta": message.text}
        probs, self._unreported = self._unreported, []
        return [*events, text | {"logprobs": self._log_probs(probs)}]

    def _add_probs(self, message: Delta) -> None:
        self._unreported += message.probs
        if not message.text and n_alternatives(self._unreported) > figures.MANY:
            self._unreported.clear()  # they belong to no text, but to reasoning
        self._n_alternatives += n_alternatives(message.probs)
        if self._n_alternatives > figures.MANY:
            self._probs.clear()
        else:
            self._probs += message.probs

    def _add_call(self, piece: ToolCallDelta) -> list[_Data]:
        events = []
        self._calls.append(piece)
        if piece.index not in self._call_ids:
            self._call_ids[piece.index] = call_id(piece)
            opened = ToolCallDelta(index=piece.index, id=piece.id, name=piece.name)
            events.append(self._added(call_item(opened, "in_progress")))
        if piece.arguments:
            id_ = self._call_ids[piece.index]
            place = {"item_id": id_, "output_index": self._output(id_)}
            name = "response.function_call_arguments.delta"
            events.append({"type": name, "delta": piece.arguments, **place})
        return events

    def _ends(self, item: _Data) -> list[_Data]:
        place = self._place(item["id"])
        events: list[_Data] = []
        if item["type"] == "message":
            (part,) = item["content"]
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            events.append({"type": "response.output_text.done", **place, **text})
            events.append({"type": "response.content_part.done", **place, "part": part})
        done = {"type": "response.output_item.done", "output_index": place["output_index"]}
        return [*events, done | {"item": item}]

    def _items(self, outcome: TaskOutcome) -> list[_Data]:
        items = []
        if outcome.reasoning:
            items.append(reasoning_item(self._ids, outcome.reasoning, "completed"))
        if outcome.text:
            part = text_part(outcome.text, self._log_probs(outcome.probs))
            items.append(message_item(self._ids, (part,), "completed"))
        return items + [call_item(call, "completed") for call in outcome.tool_calls]

    def _whole(self, outcome: TaskOutcome, items: Sequence[_Data]) -> _Data:
        return self._response("completed") | {
            "completed_at": int(time.time()),
            "incomplete_details": incomplete_details(outcome.done),
            "output": list(items),
            "usage": usage(outcome.done, outcome.n_reasoning),
        }

    def _response(self, status: str) -> _Data:
        return {
            "id": self._ids.response,
            "object": "response",
            "created_at": self._ids.created,
            "status": status,
            "model": self._card.name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            **self._echo,
        }

    def _opening(self) -> list[_Data]:
        if self._n_events:
            return []
        return [self._lifecycle("response.created"), self._lifecycle("response.in_progress")]

    def _lifecycle(self, name: str) -> _Data:
        return {"type": name, "response": self._response("in_progress")}

    def _added(self, item: _Data) -> _Data:
        name = "response.output_item.added"
        return {"type": name, "output_index": self._output(item["id"]), "item": item}

    def _place(self, id_: str) -> _Data:
        return {"item_id": id_, "output_index": self._output(id_), "content_index": 0}

    def _output(self, id_: str) -> int:
        """Return the number of an item; a new one gets the next number."""
        if id_ not in self._outputs:
            self._outputs.append(id_)
        return self._outputs.index(id_)

    def _log_probs(self, probs: Sequence[TokenProb]) -> list[Any]:
        if self._n_top < 0:
            return []
        return token_probs(probs, post=self._params.post_sampling_probs, n_top=self._n_top)

    def _frame(self, events: Sequence[_Data]) -> bytes:
        frames = []
        for data in events:
            payload = orjson.dumps(data | {"sequence_number": self._n_events})
            frames.append(named_event(data["type"], payload))
            self._n_events += 1
        return b"".join(frames)
