"""The vendors' client libraries, imported by those test processes alone that use them: 2 s each."""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["anthropic", "openai"]


class _Later:
    """Stands for a module until something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks everything in a module whether it is a fixture
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    import anthropic
    import openai
else:
    anthropic, openai = _Later("anthropic"), _Later("openai")
