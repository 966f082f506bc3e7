"""Bounds of request values: numbers, texts, lists and objects.

A shape refuses only what is too large. A wrong type is refused by the field's reader, which knows
the expected one. A bound is a number, or the name of one that follows from the model's card or from
`[gateway.limits]` (`Bounds`). A text is counted in characters, or in bytes of UTF-8 if the name
ends so: a character may become four tokens. Pure; the time is linear in the value's size.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from protocol.errors import ErrorCode, InvalidRequest, TaskError

INT32_MAX = 2**31 - 1
FLOAT32_MAX = 3.4028234663852886e38

Bound = float | str

CONTEXT_BYTES = "context_bytes"
CONTEXT_TOKENS = "context_tokens"
MAX_KEY_CHARS = 256
"""Maximum length of a name that the client chooses for an entry."""


class Clamp(Enum):
    """Ends of a range to which a number is clamped instead of refused, as in llama-server."""

    NO = 0
    HIGH = 1
    BOTH = 2
    REQUEST = 3
    """Both ends of a request's value; an option keeps its own, which has the same effect."""

    @property
    def is_both(self) -> bool:
        """Return whether no number of a request is refused."""
        return self in (Clamp.BOTH, Clamp.REQUEST)


class Bounds:
    """The numbers behind the names, for one model, and how much a request has used of them."""

    __slots__ = ("_values", "n_bytes", "n_media")

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = values
        self.n_bytes = 0
        """Bytes of the prompt's texts so far."""
        self.n_media = 0

    def __getitem__(self, bound: Bound) -> float:
        """Return the number that a bound stands for."""
        return self._values[bound] if isinstance(bound, str) else bound

    def anew(self) -> "Bounds":
        """Return the same bounds for another prompt, with nothing used."""
        return Bounds(self._values)

    def count_bytes(self, n: int, path: str) -> None:
        """Add to the length of the prompt."""
        self.n_bytes += n
        if self.n_bytes > self._values[CONTEXT_BYTES]:
            raise self.too_long(self.n_bytes, "bytes", CONTEXT_BYTES, path)

    def count_media(self, path: str) -> None:
        """Add an image or a sound."""
        self.n_media += 1
        if self.n_media > self["images"]:
            most = int(self["images"])
            raise refusal(path, f"at most {most} images or sounds, but got {self.n_media}")

    def too_long(self, n: int, what: str, bound: Bound, path: str) -> TaskError:
        """Build the complaint about a list or a text; that of a prompt names the context."""
        most = int(self[bound])
        if bound not in (CONTEXT_BYTES, CONTEXT_TOKENS):
            return refusal(path, f"at most {most} {what}, but got {n}")
        n_ctx = int(self["n_ctx"])
        message = f"Field '{path}': {n} {what} exceed the available context size ({n_ctx} tokens)"
        detail = {"n_ctx": n_ctx} | ({"n_prompt_tokens": n} if bound == CONTEXT_TOKENS else {})
        return TaskError(ErrorCode.CONTEXT_EXCEEDED, message, param=path, detail=detail)


def refusal(path: str, problem: str) -> InvalidRequest:
    """Name the field and what is wrong with it."""
    return InvalidRequest(f"Field '{path}': {problem}", param=path)


@dataclass(frozen=True, slots=True)
class FieldShape:
    """Base of all shapes."""

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        """Raise `TaskError` that names the path if the value is beyond a bound."""

    def describe(self) -> str:
        """Write down the bound of the value itself, for the documents; empty if it has none."""
        return ""

    def inner(self) -> Iterator[tuple[str, "FieldShape"]]:
        """List the shapes inside with what their paths add."""
        return iter(())


@dataclass(frozen=True, slots=True)
class Flag(FieldShape):
    """true or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(FieldShape):
    """A number within a range; `clamps` are the ends at which it is clamped, not refused."""

    low: Bound
    high: Bound
    whole: bool = True
    clamps: Clamp = Clamp.NO

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        low, high = bounds[self.low], bounds[self.high]
        value = math.trunc(value) if self.whole and math.isfinite(value) else value
        is_low = value < low and not self.clamps.is_both
        if is_low or (value > high and self.clamps is Clamp.NO):
            text = (
                f"Value must be between {number(low)} <= value <= {number(high)}, but got {value}"
            )
            raise refusal(path, text)

    def describe(self) -> str:
        notes = {Clamp.NO: "", Clamp.HIGH: ", a greater one clamped"}
        note = notes.get(self.clamps, ", clamped")
        return f"{_named(self.low)} to {_named(self.high)}{note}"


@dataclass(frozen=True, slots=True)
class Token(FieldShape):
    """A token of the model's vocabulary."""

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if type(value) is int and not 0 <= value < bounds["n_vocab"]:
            raise InvalidRequest("Prompt contains invalid tokens", param=path)

    def describe(self) -> str:
        return "a token below n_vocab"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextShape(FieldShape):
    """A text of at most `max_length` characters or bytes.

    `counts` adds it to the length of the prompt, `is_medium` to the number of images.
    """

    max_length: Bound
    counts: bool = False
    is_medium: bool = False

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if type(value) is not str:
            return
        most = bounds[self.max_length]
        in_bytes = self._unit == "bytes"
        n = n_bytes(value, most) if in_bytes else len(value)
        if n > most:
            raise bounds.too_long(n, self._unit, self.max_length, path)
        if self.counts:
            bounds.count_bytes(n if in_bytes else n_bytes(value, most), path)
        if self.is_medium:
            bounds.count_media(path)

    def describe(self) -> str:
        return f"{_named(self.max_length)} {self._unit}"

    @property
    def _unit(self) -> str:
        return "bytes" if str(self.max_length).endswith("_bytes") else "characters"


@dataclass(frozen=True, slots=True)
class Items(FieldShape):
    """A list of at most `max_length` items."""

    item: FieldShape
    max_length: Bound

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if not isinstance(value, list):
            return
        if len(value) > bounds[self.max_length]:
            unit = "tokens" if self.max_length == CONTEXT_TOKENS else "entries"
            raise bounds.too_long(len(value), unit, self.max_length, path)
        if isinstance(self.item, Flag) or (
            isinstance(self.item, Free) and self.item.fits_each(value, bounds)
        ):
            return
        if value and type(value[0]) is int and set(map(type, value)) == {int}:
            # All are integers: if the least and the greatest are valid, all are.
            value = (min(value), max(value))
        for i, item in enumerate(value):
            self.item.check(item, f"{path}[{i}]" if type(item) is not int else path, bounds)

    def describe(self) -> str:
        return f"{_named(self.max_length)} entries"

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        yield "[]", self.item


@dataclass(frozen=True, slots=True)
class Free(FieldShape):
    """Any JSON, bounded in depth and in the bytes of its texts and names."""

    depth: Bound
    max_length: Bound
    counts: bool = False

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        depth, n = measure(value, bounds[self.max_length])
        if depth > bounds[self.depth]:
            raise refusal(path, f"nests deeper than {int(bounds[self.depth])}")
        if n > bounds[self.max_length]:
            raise bounds.too_long(n, "bytes", self.max_length, path)
        if self.counts:
            bounds.count_bytes(n, path)

    def fits_each(self, values: list[Any], bounds: Bounds) -> bool:
        """Return whether all of many small values are within the bounds, in one pass."""
        if self.counts:
            return False
        depth, n = measure(values, bounds[self.max_length])
        return depth <= bounds[self.depth] + 1 and n <= bounds[self.max_length]

    def describe(self) -> str:
        return f"{_named(self.max_length)} bytes, nested {_named(self.depth)} deep"


@dataclass(frozen=True, slots=True)
class Fields(FieldShape):
    """An object with named fields; `others` is the shape of fields with other names."""

    known: Mapping[str, FieldShape] = field(hash=False)
    others: FieldShape | None = None

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if not isinstance(value, dict):
            return
        for key, item in value.items():
            shape = self.known.get(key, self.others)
            if shape is not None and item is not None:
                shape.check(item, f"{path}.{key:.80}" if path else key, bounds)

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        for key, shape in self.known.items():
            yield f".{key}", shape
        if self.others is not None:
            yield ".*", self.others


@dataclass(frozen=True, slots=True)
class Kinds(FieldShape):
    """An object whose `type` says which fields it has; `others` is for all other types."""

    known: Mapping[str, FieldShape] = field(hash=False)
    others: FieldShape

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        kind = value.get("type") if isinstance(value, dict) else None
        known = self.known.get(kind) if isinstance(kind, str) else None
        (known or self.others).check(value, path, bounds)

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        for shape in (*self.known.values(), self.others):
            yield "", shape


@dataclass(frozen=True, slots=True)
class Entries(FieldShape):
    """An object with names that the client chooses."""

    value: FieldShape
    max_length: Bound

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if not isinstance(value, dict):
            return
        if len(value) > bounds[self.max_length]:
            raise bounds.too_long(len(value), "entries", self.max_length, path)
        for key, item in value.items():
            if len(key) > MAX_KEY_CHARS:
                raise bounds.too_long(len(key), "characters", MAX_KEY_CHARS, path)
            self.value.check(item, f"{path}.{key:.80}", bounds)

    def describe(self) -> str:
        return f"{_named(self.max_length)} entries with names of {MAX_KEY_CHARS} characters"

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        yield ".*", self.value


@dataclass(frozen=True, slots=True)
class Either(FieldShape):
    """One of several shapes, told apart by the type of the value."""

    shapes: tuple[FieldShape, ...]

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        # What is free-form would count a text again.
        alone = [
            shape for shape in self.shapes if type(value) is str and isinstance(shape, TextShape)
        ]
        for shape in alone or self.shapes:
            shape.check(value, path, bounds)

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        for shape in self.shapes:
            yield "", shape


@dataclass(frozen=True, slots=True)
class Several(FieldShape):
    """One prompt or a list of them; a list with a number in it is one."""

    one: FieldShape
    max_length: Bound = "inputs"

    def check(self, value: Any, path: str, bounds: Bounds) -> None:
        if not isinstance(value, list) or {int, float} & set(map(type, value)):
            self.one.check(value, path, bounds.anew())
            return
        if len(value) > bounds[self.max_length]:
            raise bounds.too_long(len(value), "entries", self.max_length, path)
        for i, item in enumerate(value):
            self.one.check(item, f"{path}[{i}]", bounds.anew())

    def describe(self) -> str:
        return f"{_named(self.max_length)} of these"

    def inner(self) -> Iterator[tuple[str, FieldShape]]:
        yield "", self.one


def leaves(shape: FieldShape, path: str = "") -> Iterator[tuple[str, str]]:
    """List every bound in a shape with the path of what it bounds, for the documents."""
    if bound := shape.describe():
        yield path, bound
    for part, inner in shape.inner():
        yield from leaves(inner, f"{path}{part}")


def measure(value: Any, most: float) -> tuple[int, int]:
    """Return how deep arrays and objects nest (a scalar is 0), and the bytes of their texts.

    Of texts that have more than `most` characters, these are counted.
    """
    level, depth, n = [value], 0, 0
    while level:
        following: list[Any] = []
        for item in level:
            if type(item) is str:
                n += n_bytes(item, most)
            elif isinstance(item, dict):
                following += item.values()
                n += n_bytes("".join(item), most)
            elif isinstance(item, list):
                following += item
        depth += any(isinstance(item, dict | list) for item in level)
        level = following
    return depth, n


def n_bytes(text: str, most: float) -> int:
    """Return the length of a text in UTF-8; a megabyte takes 0 to 2 ms.

    Of a text with more than `most` characters return the number of these: it is too long anyway,
    and 60 MiB would take 60 ms.
    """
    if text.isascii() or len(text) > most:
        return len(text)
    return len(text.encode(errors="surrogatepass"))


def number(value: float) -> str:
    """Write a bound without a fraction of zero: 5, not 5.0."""
    is_plain = math.isfinite(value) and value == int(value) and abs(value) < 2**64
    return str(int(value)) if is_plain else str(value)


def _named(bound: Bound) -> str:
    return f"`{bound}`" if isinstance(bound, str) else number(bound)
