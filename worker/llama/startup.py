"""Settings of llama.cpp before it loads a model: NUMA, RPC servers, overridden metadata.

They come from options and are checked here, because llama.cpp aborts on wrong ones or ignores them.
"""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp as lib

from protocol.errors import ConfigError

_NUMA = {"none": 0, "distribute": 1, "isolate": 2, "numactl": 3, "mirror": 4}
_MAX_CHARS = 127
"""Of a key: llama.cpp has 128 bytes with the final NUL."""
_TAGS = {"int": 0, "float": 1, "bool": 2, "str": 3}
_OVERRIDE = re.compile(
    r"(?P<key>[^=]{1,127})=(?P<type>int|float|bool|str):(?P<value>.*)", re.DOTALL
)


def place(numa: str) -> None:
    """Set llama.cpp's NUMA strategy; empty leaves the default."""
    if numa:
        lib.llama_numa_init(_NUMA[numa])


def kv_overrides(items: Sequence[str]) -> Any:
    """Return the overrides as the array that llama.cpp reads; raises `ConfigError` naming one."""
    array = (lib.llama_model_kv_override * (len(items) + 1))()  # an empty key ends it
    for entry, item in zip(array, items, strict=False):
        _fill(entry, item)
    return array


def _fill(entry: Any, item: str) -> None:
    match = _OVERRIDE.fullmatch(item)
    fault = ConfigError(
        f"--override-kv {item}: must be KEY=TYPE:VALUE, TYPE int, float, bool or str"
    )
    if match is None:
        raise fault
    entry.key = match["key"].encode()[:_MAX_CHARS]
    entry.tag = _TAGS[match["type"]]
    text = match["value"]
    try:
        if match["type"] == "int":
            entry.value.val_i64 = int(text)
        elif match["type"] == "float":
            entry.value.val_f64 = float(text)
        elif match["type"] == "bool":
            entry.value.val_bool = {"true": True, "false": False}[text]
        else:
            entry.value.val_str = text.encode()
    except (ValueError, KeyError) as error:
        raise fault from error


def add_rpc_servers(servers: Sequence[str]) -> None:
    """Add the devices of RPC servers; raises `ConfigError` if this build or a server cannot."""
    if not servers:
        return
    ggml = open_ggml()
    ggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    registry = ggml.ggml_backend_reg_by_name(b"RPC")
    if not registry:
        raise ConfigError(
            "--rpc: this build of llama.cpp has no RPC backend; build it with "
            "CMAKE_ARGS=-DGGML_RPC=on"
        )
    ggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    address = ggml.ggml_backend_reg_get_proc_address(
        ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server"
    )
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    for server in servers:
        added = add(server.encode())
        if not added:
            raise ConfigError(f"--rpc: cannot reach {server}")
        ggml.ggml_backend_register(ctypes.c_void_p(added))


def open_ggml(part: str = "ggml") -> ctypes.CDLL:
    """Open one of ggml's libraries beside llama.cpp; by default that with the list of backends."""
    folder = Path(
        os.environ.get("LLAMA_CPP_LIB_PATH", "") or Path(llama_cpp.__file__).parent / "lib"
    )
    for name in (f"lib{part}.so", f"lib{part}.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise ConfigError(f"{folder} holds no lib{part}")
