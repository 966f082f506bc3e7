"""The vendors' client libraries, imported by those test processes alone that use them: 2 s each."""

import importlib
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["anthropic", "openai"]


class _Later:
    """Stands for a module until something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks everything in a module whether it is a fixture
            raise AttributeError(name)
        return getattr(_imported(self._name), name)


@cache
def _imported(name: str) -> ModuleType:
    """Import a library, and let all its clients share the public certificates: 26 ms to read."""
    transports: Any = importlib.import_module("httpx2._transports.default")
    if transports.create_ssl_context is importlib.import_module("httpx2").create_ssl_context:
        transports.create_ssl_context = cache(transports.create_ssl_context)
    return importlib.import_module(name)


if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = _Later("anthropic"), _Later("openai")
