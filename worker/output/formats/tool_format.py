"""Description of a format of tool calls."""

from dataclasses import dataclass

NAME, ANY, KIND = "\0name", "\0any", "\0kind"
"""Name of a tool, an identifier, and the language of the arguments that gpt-oss may name."""

Path = tuple[str | None, ...]
"""Keys from the root of a JSON value; an element of an array is None."""

Parts = tuple[str, ...]
"""Literals with optional white space between them."""

FLAT: tuple[Path, ...] = ((), (None,), ("function",))
"""A call, an array of calls, or OpenAI's wrapper around one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """Arguments that are not JSON: a tag around each key and each value."""

    key_open: str
    key_close: str
    kinds: tuple[str, str] | None = None
    """Texts after the key of a string, and of any other value; None: nothing tells them apart."""
    value_open: str = ""
    """Tag before a value; empty if the value follows the key directly."""
    has_type: bool = False
    """Whether the type of a value stands between the tags of key and value."""
    value_close: str
    is_block: bool = False
    """Whether a value and the tag after it are on lines of their own."""
    quotes: tuple[str, str] | None = None
    """Texts around a string that contains markup; None: there are none."""
    close: str
    """Stands after the last argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Arguments whose parts are nested tags."""

    mark: str
    """Mark before every tag."""
    close: str
    """Stands after the last argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """Arguments that are almost JSON; the opener contains what begins them."""

    quotes: tuple[str, ...]
    """Texts that begin and end a string."""
    separator: str
    """Stands after the name of an argument."""
    close: str
    """Character after the last argument."""
    has_bare_keys: bool = False
    """Whether keys inside objects are without quotes; names of arguments always are."""
    is_sorted: bool = False
    """Whether arguments come in the order of their names, not as the tool lists them."""
    has_escapes: bool = False
    """Whether a backslash in a string is special."""
    words: tuple[tuple[str, str], ...] = ()
    """Words and what they are in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way of writing calls; only the arguments follow an opener with `NAME`."""

    name: str
    marks: tuple[str, ...] = ()
    """Texts that the template must all contain."""
    openers: tuple[Parts, ...] = ()
    closers: tuple[str, ...] = ()
    """Texts after a call, which are dropped."""
    end: str = ""
    """Text after the last call."""
    after: str = ""
    """Text that may follow the end, and is dropped."""
    dropped: tuple[str, ...] = ()
    """Texts that are dropped anywhere in the content."""
    is_bare: bool = False
    """An answer that begins with a JSON object may be a call."""
    is_array: bool = False
    """The calls after an opener stand in an array."""
    is_single: bool = False
    """An answer has one call at most."""
    is_sequence: bool = False
    """The calls after an opener follow one another, with nothing but space between them."""
    is_keyed: bool = False
    """A call is an object whose one key is the name, and whose value is the arguments."""
    calls: tuple[Path, ...] = FLAT
    """Where in the JSON after an opener the calls are."""
    content: Path | None = None
    """Where in the JSON an answer without calls is."""
    name_key: str = "name"
    arguments_key: str = "arguments"
    tagged: Tagged | None = None
    """Arguments stand in tags; None: they are JSON."""
    nested: Nested | None = None
    """Arguments stand in tags within tags."""
    notation: Notation | None = None
    """Arguments are almost JSON."""
    later: Parts = ()
    """What begins a call directly after another, and only there; empty: the last opener."""
    loose_openers: tuple[Parts, ...] = ()
    """Other ways in which some models begin the first call."""
    triggers: tuple[str, ...] = ()
    """Where a grammar begins to hold; empty: where the first opener or a loose one does.

    They may contain `NAME`.
    """
    has_words_first: bool = False
    """A bare call may come after other content."""
    reasoning_key: str = ""
    """Name under which the template reads earlier reasoning; empty: `reasoning_content`."""
    thinks_or_says: bool = False
    """The template takes reasoning or words before a call, not both; words are left out then."""
    unasked: tuple[str, str] = ("", "")
    """End of a prompt in which the template forgot to ask for an answer, and what asks for one."""
    has_id: bool = False
    """The model writes an id into the call."""
    shows_schema: bool = False
    """The template shows `response_format`, the schema of an answer."""
    first_id_key: str = ""
    """Key of an id that the model may write before the name."""
    id_length: int = 32
