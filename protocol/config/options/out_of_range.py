"""Values outside a field's limits that llama-server takes: what an option sets instead of them.

Only options, variables and preset files: a request or a configuration file keeps to the limits.
The effects are those of llama.cpp's `common/arg.cpp` and of what it hands the values to.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protocol.wire.shapes import FLOAT32_MAX, INT32_MAX
from protocol.wire.values import take_samplers, unknown_samplers


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfRange:
    """What stands for a number below `low` or above `high`."""

    low: float = -math.inf
    below: float | None = None
    """None: `low`."""
    high: float = math.inf
    above: float | None = None
    """None: `high`."""
    why: str = ""
    """What is used and why, if that is not what llama-server does; empty: it has its effect."""

    def used(self, value: float) -> float:
        """Return the value to set."""
        if value < self.low:
            return self.low if self.below is None else self.below
        if value > self.high:
            return self.high if self.above is None else self.above
        return value

    def reason(self, value: float) -> str:
        """Return why another value is used than llama-server's; empty if it has the same effect."""
        return self.why if self.used(value) != value else ""

    def described(self) -> list[tuple[str, str, str]]:
        """Return rows for the documents: the value, what is used, whether there is a warning."""
        ends = (("below", self.low, -1), ("above", self.high, 1))
        return [
            (f"{word} {end:g}", _shown(self.used(end + step)), "yes" if self.why else "")
            for word, end, step in ends
            if abs(end) < FLOAT32_MAX
        ]


def _shown(value: float) -> str:
    return "no limit" if value == INT32_MAX else f"{value:g}"


class KnownSamplers:
    """What stands for a list of samplers: those that are known, as in llama-server."""

    def used(self, value: Any) -> Any:
        """Return the known samplers."""
        return take_samplers(value)

    def reason(self, value: Any) -> str:
        """Name those that are left out."""
        unknown = ", ".join(map(repr, unknown_samplers(value)))
        return f"names unknown samplers, which are left out: {unknown:.80}" if unknown else ""

    def described(self) -> list[tuple[str, str, str]]:
        """Return the row for the documents."""
        return [("unknown names", "the others", "yes")]


_SHARE = OutOfRange(low=0, high=1)
_ANY_LAYERS = OutOfRange(high=10000)
_AUTOMATIC = OutOfRange(low=-1)
_POLL = OutOfRange(
    low=-1, below=100, high=100, why="would keep the CPU busy for ever: 100, the longest, is used"
)

OUT_OF_RANGE: Mapping[str, OutOfRange | KnownSamplers] = {
    "gateway.n_threads": _AUTOMATIC,
    "gateway.models_max": OutOfRange(low=0),
    "gateway.timeout_s": OutOfRange(
        low=1, below=600.0, why="would refuse every request with a body: 600 seconds are used"
    ),
    "log.verbosity": OutOfRange(low=0, below=1),
    "worker.n_slots": _AUTOMATIC,
    "worker.n_threads": _AUTOMATIC,
    "worker.n_threads_batch": _AUTOMATIC,
    "worker.n_threads_draft": _AUTOMATIC,
    "worker.n_threads_batch_draft": _AUTOMATIC,
    "worker.poll": _POLL,
    "worker.poll_batch": _POLL,
    "worker.poll_draft": _POLL,
    "worker.poll_batch_draft": _POLL,
    "worker.n_batch": OutOfRange(low=0, below=INT32_MAX),
    "worker.n_ubatch": OutOfRange(low=0),
    "worker.n_gpu_layers": _ANY_LAYERS,
    "worker.n_gpu_layers_draft": _ANY_LAYERS,
    "worker.fit_ctx": OutOfRange(low=0, below=INT32_MAX),
    "worker.n_ctx_per_slot": OutOfRange(low=0),
    "worker.cache_ram": _AUTOMATIC,
    "worker.image_min_tokens": _AUTOMATIC,
    "worker.image_max_tokens": _AUTOMATIC,
    "worker.mtmd_batch_max_tokens": OutOfRange(low=1),
    "worker.slot_similarity": OutOfRange(low=0, below=1e-9, high=1),
    "worker.rope_freq_base": OutOfRange(
        low=0, why="would make every logit not a number: the model's own base is used"
    ),
    "worker.rope_freq_scale": OutOfRange(
        high=FLOAT32_MAX,
        above=0.0,
        why="would make every logit not a number: the model's own scale is used",
    ),
    "worker.yarn_orig_ctx": OutOfRange(
        low=0, why="would leave no context with YaRN: what the model was trained on is used"
    ),
    "worker.n_draft": OutOfRange(high=64, why="is more than is ever drafted: 64 is used"),
    "worker.n_draft_min": OutOfRange(low=0, high=64),
    "worker.draft_p_min": _SHARE,
    "worker.embd_normalize": OutOfRange(
        low=-1, below=2, why="is no norm: 2, the Euclidean one, is used"
    ),
    "sampling.temperature": OutOfRange(low=0),
    "sampling.dry_base": OutOfRange(low=1, below=1.75),
    "sampling.dry_allowed_length": OutOfRange(low=0, why="is no length: 0 is used"),
    "sampling.n_keep": _AUTOMATIC,
    "sampling.repeat_penalty": OutOfRange(high=1e6),
    "sampling.adaptive_decay": OutOfRange(low=0, high=0.99),
    "sampling.samplers": KnownSamplers(),
}
"""By field. What is not here and outside the field's limits is refused."""
