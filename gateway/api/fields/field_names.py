"""Names of fields as the client wrote them: for bodies that are planned as a chat's."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from protocol.errors import InvalidRequest

_FUNCTION = re.compile(r"^(tools\[\d+\]|tool_choice)\.function\b")


@contextmanager
def respelled(names: Mapping[str, str]) -> Iterator[None]:
    """Name in a complaint the field that became the chat's; `names` is chat's to client's."""
    try:
        yield
    except InvalidRequest as error:
        if error.param is None:
            raise
        raise InvalidRequest(error.message, param=respell(error.param, names)) from error


def respell(param: str, names: Mapping[str, str]) -> str:
    """Return the client's name of a chat's field, or of what is in it."""
    param = _FUNCTION.sub(r"\1", param)  # only a chat puts functions into an object of their own
    head = re.match(r"\w*", param)
    name = head[0] if head is not None else ""
    return names.get(name, name) + param[len(name) :]
