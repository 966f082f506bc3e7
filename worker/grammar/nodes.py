"""A JSON schema as the converter sees it: the subset that a grammar can express.

As in llama.cpp's common/json-schema.h; other keywords (`not`, `uniqueItems`, bounds of numbers
that are not integers, …) are ignored there and here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class AnyValue:
    """No constraint."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference into the same document; its target is in `Document.refs`."""

    ref: str


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`anyOf`, `oneOf`, or a list of types."""

    children: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """`allOf`."""

    children: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Const:
    """One value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Alternatives:
    """`enum`."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Primitive:
    """`number`, `boolean` or `null`: the name of a built-in rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer with inclusive bounds; None means no bound."""

    minimum: int | None = None
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class LiteralText:
    """A string; a pattern takes precedence over a format, a format over the lengths."""

    pattern: str = ""
    format: str = ""
    min_length: int = 0
    max_length: int | None = None


@dataclass(frozen=True, slots=True)
class Array:
    """An array of alike items."""

    items: "Node" = field(default_factory=AnyValue)
    min_items: int = 0
    max_items: int | None = None


@dataclass(frozen=True, slots=True)
class NodeSequence:
    """An array with a schema for each place."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Property:
    """A named member of an object."""

    name: str
    schema: "Node"
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Members:
    """An object; `additional` is None where other members are not allowed."""

    properties: tuple[Property, ...] = ()
    additional: "Node | None" = None


Node: TypeAlias = (
    AnyValue
    | Ref
    | AnyOf
    | AllOf
    | Const
    | Alternatives
    | Primitive
    | Integer
    | LiteralText
    | Array
    | NodeSequence
    | Members
)


@dataclass(frozen=True, slots=True)
class Document:
    """A schema with the targets of its references."""

    root: Node
    refs: Mapping[str, Node]
