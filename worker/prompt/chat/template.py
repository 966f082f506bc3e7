"""Chat templates: Jinja in a sandbox."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from protocol.errors import ConfigError, InvalidRequest
from protocol.wire.facts import ModelCard

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""llama-server's template for a model without one."""

_MAX_REASON = 500
"""Characters of the template's error that the client is told."""

_REFUSALS = (
    """{%- if "<|channel|>analysis<|message|>" in message.content or """
    """"<|channel|>final<|message|>" in message.content %}""",
    "{%- if (message['content'] is none or message['content'] == '' or message['content']|length"
    " == 0) and (message['tool_calls'] is not defined or message['tool_calls'] is none or"
    " message['tool_calls']|length == 0) %}",
)
"""Conditions under which gpt-oss and Ministral refuse an answer: false, as in llama.cpp."""


class _Nothing(jinja2.ChainableUndefined):
    """Undefined value: as in llama.cpp it has any attribute and can be joined with text."""

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __getattr__(self, name: str) -> "_Method":
        """Return what may be a method of a value that is absent."""
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method(self._undefined_hint, self._undefined_obj, self._undefined_name)


class _Method(_Nothing):
    """Nothing again if it is called, as `properties.items()` of a tool without properties."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self


class _Absent(_Nothing):
    """Tools where there are none."""


def _is_none(value: Any) -> bool:
    """Templates ask for no tools as `tools is none` too."""
    return value is None or isinstance(value, _Absent)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Lenient with undefined values, strict with forbidden attributes."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """Return a value for a forbidden attribute, whose use is an error."""
        refused = f"access to attribute {attribute!r} is unsafe"
        return jinja2.StrictUndefined(refused, exc=jinja2.exceptions.SecurityError)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Allow changing lists; templates get copies only."""
        is_collecting = type(obj) is list and attr in ("append", "pop")
        return is_collecting or super().is_safe_attribute(obj, attr, value)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks training text; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Render the contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template; the sandbox keeps a model file from running code here."""

    def __init__(self, source: str, card: ModelCard) -> None:
        environment = _Sandbox(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _GenerationBlock],
            # As llama.cpp's: `messages[0].role` of no messages is undefined, not an error.
            undefined=_Nothing,
        )
        environment.filters["tojson"] = _to_json
        environment.filters["default"] = environment.filters["d"] = _default
        environment.filters["indent"] = _indent
        environment.filters["safe"] = str  # no autoescape: `| safe` must not switch it on
        environment.tests["none"] = _is_none
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._card = card
        self.source = source
        for refusal in _REFUSALS:
            source = source.replace(refusal, "{%- if false %}")
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # such as RecursionError for blocks nested without end
            raise ConfigError(f"the chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Write a conversation as the text that the model continues; raises `InvalidRequest`.

        Any exception of a template, endless recursion included, fails this conversation only.
        """
        known = {
            "bos_token": self._card.bos_token,
            "eos_token": self._card.eos_token,
            "tools": _Absent(name="tools"),
            "functions": _Absent(name="functions"),
            "enable_thinking": True,
            "date_string": _now("%d %b %Y"),
            "datetime": _now("%b %d %Y"),
            **_spelt_out(variables),
            **variables,
            "add_generation_prompt": add_generation_prompt,
            "messages": list(messages),
        }
        try:
            return self._template.render(known)  # not as keywords: one may be called `self`
        except Exception as error:
            reason = str(error)[:_MAX_REASON] or type(error).__name__
            message = f"The chat template cannot render these messages: {reason}"
            raise InvalidRequest(message, param="messages") from error


def _spelt_out(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Add all names that templates use for two of llama.cpp's variables."""
    keeps, effort = variables.get("preserve_reasoning"), variables.get("reasoning_effort")
    found: dict[str, Any] = {}
    if isinstance(keeps, bool):
        found["preserve_thinking"] = keeps
        drops = ("clear_thinking", "truncate_history_thinking", "drop_thinking")
        found |= dict.fromkeys(drops, not keeps)
    if isinstance(effort, str) and effort:
        found["reasoning_strength"] = effort
    return found


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without escapes for HTML, which Jinja's own filter would add.

    The options are those of transformers, for which the templates are written.
    """
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """Indent all lines but the first: Jinja's own also ends lines at U+2028 and the like."""
    space = width if isinstance(width, str) else " " * width
    head, *lines = str(text).split("\n")
    rest = (space + line if line or blank else line for line in lines)
    return "\n".join((space * first + head, *rest))


def _listed(value: Any) -> list[Any]:
    """Convert generators of Jinja's filters to lists; other values are an error."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _default(value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    """Replace what is undefined or, as in llama.cpp, None."""
    is_missing = not value if boolean else value is None or isinstance(value, jinja2.Undefined)
    return default_value if is_missing else value


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return time.strftime(form)
