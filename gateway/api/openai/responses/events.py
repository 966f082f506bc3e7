"""The answers of /v1/responses: the events of a stream and the object in one piece.

The events have llama-server's fields, and those that OpenAI's clients need: the numbers of events,
outputs and parts. Their order is OpenAI's (`gateway.api.openai.responses.items`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.api.openai.responses.items import ItemEvents
from gateway.api.openai.responses.objects import (
    call_item,
    draw_id,
    incomplete_details,
    message_item,
    reasoning_item,
    text_part,
    usage,
)
from gateway.api.reply import ResponseFormatter, TaskOutcome, error_event
from gateway.api.results import figures
from gateway.api.results.figures import n_alternatives, progress_fields, timings, token_probs
from gateway.api.sse import named_event
from protocol.wire.facts import ModelCard, TokenProb
from protocol.wire.messages import Delta, Done, Progress
from protocol.wire.sampling import SamplingParams

_Data = dict[str, Any]


class ResponsesReply(ResponseFormatter):
    """Writes the answers of OpenAI's responses API."""

    def __init__(
        self, card: ModelCard, params: SamplingParams, *, echo: Mapping[str, Any], n_top: int
    ) -> None:
        self._card = card
        self._params = params
        self._echo = echo
        self._n_top = n_top
        self._id = draw_id("resp_")
        self._created = int(time.time())
        self._n_events = 0
        self._items = ItemEvents(self._take_log_probs)
        self._n_reasoning = 0
        self._probs: list[TokenProb] = []
        """Those that the events of a whole text repeat, up to `MANY`. More are in the events of
        their tokens only: a million in each of four events took the loop 1.7 s."""
        self._n_alternatives = 0
        self._unreported: list[TokenProb] = []
        """Those of an incomplete character, for the event of the next text."""

    def progress(self, index: int, message: Progress) -> bytes:
        """Return the frame that tells how far the prompt is read."""
        events = self._opening() or [self._lifecycle("response.in_progress")]
        events[-1] |= progress_fields(message, self._params)
        return self._frame(events)

    def delta(self, index: int, message: Delta) -> bytes:
        """Return the frames of what was added, item by item."""
        events = self._opening()
        if message.reasoning:
            self._n_reasoning = message.n_predicted
            events += self._items.reasoning(message.reasoning)
        self._add_probs(message)
        if message.text:
            probs, self._unreported = self._unreported, []
            events += self._items.text(message.text, self._log_probs(probs))
        for piece in message.tool_calls:
            events += self._items.call(piece)
        if events and message.timings is not None:
            events[-1]["timings"] = timings(message.timings)
        return self._frame(events)

    def done(self, index: int, message: Done) -> bytes:
        """Return the frames that end the last item, and the whole response."""
        events = self._opening() + self._items.close()
        whole = self._whole(message, self._items.closed, self._n_reasoning)
        data = {"type": "response.completed", "response": whole}
        events.append(data | {"timings": timings(message.timings)})
        return self._frame(events)

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
        items = []
        if outcome.reasoning:
            items.append(reasoning_item(draw_id("rs_"), outcome.reasoning, "completed"))
        if outcome.text:
            part = text_part(outcome.text, self._log_probs(outcome.probs))
            items.append(message_item(draw_id("msg_"), (part,), "completed"))
        items += [call_item(call, "completed") for call in outcome.tool_calls]
        return self._whole(outcome.done, items, outcome.n_reasoning)

    def _add_probs(self, message: Delta) -> None:
        self._unreported += message.probs
        if not message.text and n_alternatives(self._unreported) > figures.MANY:
            self._unreported.clear()  # they belong to no text, but to reasoning
        self._n_alternatives += n_alternatives(message.probs)
        if self._n_alternatives > figures.MANY:
            self._probs.clear()
        else:
            self._probs += message.probs

    def _take_log_probs(self) -> list[Any]:
        probs, self._probs = self._probs, []
        return self._log_probs(probs)

    def _whole(self, done: Done, items: Sequence[_Data], n_reasoning: int) -> _Data:
        return self._response("completed") | {
            "completed_at": int(time.time()),
            "incomplete_details": incomplete_details(done),
            "output": list(items),
            "usage": usage(done, n_reasoning),
        }

    def _response(self, status: str) -> _Data:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
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
