"""What a stage does in a child process, which has the packages and the library that was built."""

from pathlib import Path
from typing import Any

from benchmarks.compare.servers import Side
from benchmarks.gpu.kit import ALL_LAYERS
from benchmarks.gpu.options import try_all
from benchmarks.gpu.requests import Asked, answers, kill_one_of_two
from benchmarks.gpu.shortage import squeeze


def ask_here(what: str, how: str, model: Path, server: Path, *, is_dry: bool) -> Any:
    """Do what a stage orders, in this process."""
    n = 8 if is_dry else 128
    flags = ("-ngl", str(ALL_LAYERS))
    match what, how:
        case "answers", "ours":
            return answers(Asked(Side.OURS, server, model, n, flags))
        case "answers", "theirs":
            return answers(Asked(Side.THEIRS, server, model, n, flags))
        case "sampled", _:
            fields = {"temperature": 0.8, "top_k": 40, "seed": 7}
            fields["backend_sampling"] = how == "device"
            return answers(Asked(Side.OURS, server, model, n, flags, fields))
        case "options", _:
            return try_all(server, model, is_dry=is_dry)
        case "shortage", _:
            return squeeze(model)
        case _:
            return kill_one_of_two(model, 200 if is_dry else 512, *flags)
