"""llama-cpp-python's bindings without the server that comes with them.

Its package imports chat formats, jinja2, diskcache and sqlite before any binding can be used: 12 MB
in each worker and a third of a second of its start. Nothing of that is used here.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "llama_cpp"


class BarePackage(ModuleType):
    """The package with its submodules; the rest of it is loaded at its first use."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__file__ = spec.origin
        self.__loader__ = spec.loader
        self.__path__ = list(spec.submodule_search_locations or ())
        self.hooks: list[Callable[[], object]] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return version()
        if name.startswith("__") or self.__loader__ is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        loader, self.__loader__ = self.__loader__, None  # once; a second time it is not there
        loader.exec_module(self)  # type: ignore[attr-defined] # the loader of a package of files
        for hook in self.hooks:
            hook()
        return getattr(self, name)


def use_bare_package() -> None:
    """Let `import llama_cpp.llama_cpp` run nothing else, unless the package is in use already."""
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is not None:
        sys.modules[_NAME] = BarePackage(spec)


def on_full_load(hook: Callable[[], object]) -> None:
    """Call a function after the package has loaded the rest of itself."""
    module = sys.modules.get(_NAME)
    if isinstance(module, BarePackage):
        module.hooks.append(hook)


def folder() -> Path:
    """Return where the package lies; raises `ModuleNotFoundError`."""
    spec = importlib.util.find_spec(_NAME)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named '{_NAME}'", name=_NAME)
    return Path(spec.origin).parent


@cache
def version() -> str:
    """Return the version of the bindings as the package states it."""
    found = re.search(r'^__version__ = "([^"]+)"', (folder() / "__init__.py").read_text(), re.M)
    return found[1] if found else "unknown"
