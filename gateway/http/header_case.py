"""Upper and lower case in the names of headers."""

from starlette.types import Scope

Headers = list[tuple[bytes, bytes]]


def spelled_for(headers: Headers, scope: Scope) -> Headers:
    """Return the names as HTTP/2 demands them, or for HTTP/1 as llama-server writes them.

    Upper case means nothing in HTTP/1, but clients that compare names as they came exist:
    llama-server's own tests are one.
    """
    if scope.get("http_version", "1.1").startswith("1"):
        return headers
    return [(name.lower(), value) for name, value in headers]
