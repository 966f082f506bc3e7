"""The mixed traffic of a soak: every kind of request that a client may send, drawn from a seed.

Each request has one right answer: it is greedy, or names its seed, so that what comes while
something breaks can be compared with what came before.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TEXT = "the river ran past a mill where two brothers kept bees and sold honey to travellers"
_WORDS = _TEXT.split()
_SAID_TOKENS = 400
"""Room for a text that the fake backend is told to say."""
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
_TOOL = {"name": "weather", "description": "Tells the weather.", "parameters": _SCHEMA}
_TEMPLATE_END = len("A: ")
"""Characters of `FAKE_TEMPLATE` behind a message. The fake backend counts them as generated."""
FAKE_TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools> Answer with"
    ' <tool_call>{\\"name\\": NAME, \\"arguments\\": {}}</tool_call>.\\n{% endif %}'
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}A: {% endif %}"
)
"""Chat template for workers with the fake backend, escaped for TOML; its calls are Hermes'.

It ends soon after the last message, for the fake's text depends on the last 16 characters only.
"""


@dataclass(frozen=True, slots=True)
class SoakRequest:
    """One request, as it is sent each time."""

    kind: str
    number: int
    path: str
    body: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Return its name, which no other request of the same seed has."""
        return f"{self.kind}-{self.number}"

    @property
    def streams(self) -> bool:
        """Whether the answer comes in events."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficShape:
    """What traffic is made of."""

    is_fake: bool = True
    """The fake backend says what a marker of the prompt tells it; a model obeys its grammar."""
    model: str = "fake"
    """Name of the model, in every request; empty names none."""
    n_min: int = 40
    n_max: int = 120
    """Tokens of an answer."""
    kinds: tuple[str, ...] = ()
    """Only these kinds; empty is all."""


class Traffic:
    """Draws requests; the same seed draws the same ones."""

    def __init__(self, seed: int, shape: TrafficShape) -> None:
        self._rng = random.Random(seed)  # noqa: S311  no secret
        self._shape = shape
        self._n = 0

    def requests(self) -> list[SoakRequest]:
        """Return one request of each kind."""
        kinds = self._shape.kinds or tuple(
            each for each in _KINDS if self.is_fake or each not in _FAKE_ONLY
        )
        return [self._drawn(kind) for kind in kinds]

    def _drawn(self, kind: str) -> SoakRequest:
        self._n += 1
        path, body = _KINDS[kind](self)
        if self._shape.model:
            body["model"] = self._shape.model
        return SoakRequest(kind, self._n, path, body)

    def story(self) -> str:
        """Return some words that no other request begins with."""
        words = self._rng.choices(_WORDS, k=self._rng.randint(4, 24))
        return f"Story {self._n}: {' '.join(words)} {self._rng.randrange(10**9)}"

    def said(self, text: str) -> str:
        """Return a message whose answer is a text, if the fake backend answers."""
        story = self.story()
        return f"{story} [[say {'.' * _TEMPLATE_END}{text}]]" if self.is_fake else story

    @property
    def is_fake(self) -> bool:
        """Whether the fake backend answers."""
        return self._shape.is_fake

    def length(self) -> int:
        """Draw the number of tokens of an answer."""
        return self._rng.randint(self._shape.n_min, self._shape.n_max)

    def seed(self) -> int:
        """Draw a seed for sampling."""
        return self._rng.randrange(1 << 31)


_Drawn = tuple[str, dict[str, Any]]
_CHAT = "/v1/chat/completions"


def _chat(it: Traffic, content: str = "", **more: Any) -> _Drawn:
    messages = [{"role": "user", "content": content or it.story()}]
    body = {"messages": messages, "max_tokens": it.length(), "temperature": 0, **more}
    return _CHAT, body


def _native(it: Traffic, **more: Any) -> _Drawn:
    return "/completion", {
        "prompt": it.story(),
        "n_predict": it.length(),
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


def _completions(it: Traffic, **more: Any) -> _Drawn:
    body = {"prompt": it.story(), "max_tokens": it.length(), "temperature": 0, **more}
    return "/v1/completions", body


def _stopped(it: Traffic) -> _Drawn:
    """Make the answer begin stop strings often, and end at one."""
    text = f"{it.story()[-100:].replace(' ', ' <en')}<end>and more"
    return _said(it, text, stop=["<end>", "zq"], stream=True)


def _schema(it: Traffic, **more: Any) -> _Drawn:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": _SCHEMA}}
    return _said(it, _person(it), response_format=form, **more)


def _tools(it: Traffic, **more: Any) -> _Drawn:
    call = f'<tool_call>{{"name": "weather", "arguments": {_person(it)}}}</tool_call>'
    tool = {"type": "function", "function": _TOOL}
    return _said(it, call, tools=[tool], tool_choice="required", **more)


def _person(it: Traffic) -> str:
    return f'{{"name": "{it.story()}", "age": 41}}'


def _reasoning(it: Traffic) -> _Drawn:
    return _said(it, f"<think>{it.story()}</think>{it.story()[-40:]}", stream=True)


def _said(it: Traffic, text: str, **more: Any) -> _Drawn:
    length = {"max_tokens": _SAID_TOKENS} if it.is_fake else {}
    return _chat(it, it.said(text), **length, **more)


def _responses(it: Traffic) -> _Drawn:
    body = {"input": it.story(), "max_output_tokens": it.length(), "temperature": 0, "stream": True}
    return "/v1/responses", body


def _messages(it: Traffic, **more: Any) -> _Drawn:
    messages = [{"role": "user", "content": it.story()}]
    return "/v1/messages", {
        "messages": messages,
        "max_tokens": it.length(),
        "temperature": 0,
        **more,
    }


_KINDS: dict[str, Any] = {
    "completion": lambda it: _native(it, stream=True),
    "completion-whole": _native,
    "completion-seed": lambda it: _native(it, stream=True, seed=it.seed(), temperature=0.9),
    "completion-mirostat": lambda it: _native(
        it, stream=True, seed=it.seed(), temperature=0.9, mirostat=2
    ),
    "completion-dry": lambda it: _native(
        it, stream=True, seed=it.seed(), temperature=0.9, dry_multiplier=0.8, dry_penalty_last_n=-1
    ),
    "completion-probs": lambda it: _native(it, stream=True, n_probs=2),
    "chat": lambda it: _chat(it, stream=True),
    "chat-whole": _chat,
    "chat-probs": lambda it: _chat(it, stream=True, logprobs=True, top_logprobs=2),
    "chat-reasoning": _reasoning,
    "chat-stop": _stopped,
    "chat-n2": lambda it: _chat(it, n=2, seed=it.seed(), temperature=0.9, stream=True),
    "chat-schema": lambda it: _schema(it, stream=True),
    "chat-schema-whole": _schema,
    "chat-tools": lambda it: _tools(it, stream=True),
    "chat-tools-whole": _tools,
    "text": lambda it: _completions(it, stream=True),
    "text-n2": lambda it: _completions(it, n=2, seed=it.seed(), temperature=0.9),
    "text-stop": lambda it: _completions(it, stream=True, stop=["e e", "th", "zq"]),
    "responses": _responses,
    "messages": lambda it: _messages(it, stream=True),
    "messages-whole": _messages,
    "embeddings": lambda it: ("/v1/embeddings", {"input": [it.story(), it.story()]}),
}
"""For each kind of request, a function that draws one."""
_FAKE_ONLY = ("completion-mirostat",)
"""Kinds that only the fake backend is asked for: if a model's answer differs, it cannot be told
whether that is due to rounding (`benchmarks/fleet/partings.py`)."""
KINDS = tuple(_KINDS)
