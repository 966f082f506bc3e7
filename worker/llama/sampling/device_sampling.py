"""Back-end sampling: chains that choose inside the compute graph, on the device of the model.

A context of llama.cpp takes one chain for each sequence (`llama_set_sampler`). From then on the
rows of that sequence bring a token instead of their logits, and `llama_sampler_sample` returns it.
What was tried on the library, and what follows from it:

- A chain can be attached once in its life. A second time aborts the process, also after it was
  detached; sampling with it on the host after that aborts too, and so does freeing it while it is
  attached. So each task's chain is attached once and detached only to be freed, by its owner.
- A row whose sequence has a chain leaves no logits unless another row needs them. The last row of
  a prompt may be sampled by several tasks, each in its own way: chains are attached after it.
- Chains differ from the host's in what `fits` leaves out; there some values even abort.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.config.config import WorkerConfig
from protocol.wire.sampling import SamplingParams
from worker.engine.backend import BatchRow
from worker.llama.sampling.chain import (
    Chain,
    has_dry,
    has_penalties,
    has_xtc,
    is_greedy,
    order,
)
from worker.llama.sampling.sampler import LlamaSampler
from worker.llama.vocabulary import LlamaVocabulary
from worker.speculation.kinds import longest_draft

logger = logging.getLogger(__name__)

MAX_CANDIDATES = 1024
"""Maximum candidates of a draw: with more, the rounded sum could choose an excluded token."""
MIN_TEMPERATURE, MAX_MIN_P, MAX_BIAS, MAX_PENALTY = 0.01, 0.9, 100.0, 10.0
"""Limits: beyond them logits are so large that min-p rounds to no candidate."""

Attach = Callable[[int, Any], bool]
"""Attaches a chain to a sequence or detaches it; false where the device supports none."""


@dataclass(frozen=True, slots=True)
class Device:
    """Facts besides the request that decide whether a chain may run on the device."""

    n_vocab: int
    suppressed: Sequence[int] = ()
    """Tokens that the model forbids; every chain has a bias against them."""
    drafts: bool = False
    """Several tokens of a sequence may be chosen in one batch."""
    is_able: bool = True


_IS_ON: dict[str, Callable[[SamplingParams], bool]] = {
    "penalties": has_penalties,
    "dry": has_dry,
    "top_n_sigma": lambda p: p.top_n_sigma > 0,
    "top_k": lambda p: p.top_k > 0,
    "typ_p": lambda p: p.typical_p < 1,
    "top_p": lambda p: p.top_p < 1,
    "min_p": lambda p: p.min_p > 0,
    "xtc": has_xtc,
    "temperature": lambda p: p.temperature != 1 or p.dynatemp_range > 0,
    "tfs_z": lambda p: p.tfs_z < 1,
}
"""Whether a stage changes anything; a stage that is not named here always does."""

_ABLE = frozenset({"penalties", "top_k", "top_p", "min_p", "temperature"})


def fits(p: SamplingParams, device: Device, biases: Sequence[tuple[int, float]] = ()) -> bool:
    """Return whether a chain chooses on the device just what it would choose on the host."""
    banned = [*(token for token, _ in biases), *device.suppressed]
    # On the device the last bias of a token counts, on the host they add up.
    if len(set(banned)) != len(banned) or len(banned) >= device.n_vocab:
        return False
    if is_greedy(p):
        return all(bias < float("inf") for _, bias in biases)
    stages = [name for name in order(p) if name not in _IS_ON or _IS_ON[name](p)]
    is_plain = p.mirostat == 0 and p.min_keep <= 1 and p.dynatemp_range <= 0
    return (
        is_plain
        and _ABLE.issuperset(stages)
        and not (device.drafts and "penalties" in stages)
        and _is_in_order(p, stages)
        and p.top_k <= min(MAX_CANDIDATES, device.n_vocab)
        and _is_moderate(p)
        and all(bias <= MAX_BIAS for _, bias in biases)
    )


def _is_moderate(p: SamplingParams) -> bool:
    factor, most = p.repeat_penalty, MAX_PENALTY
    return (
        (p.temperature <= 0 or p.temperature >= MIN_TEMPERATURE)
        and p.min_p <= MAX_MIN_P
        and max(factor, 1 / factor, abs(p.presence_penalty), abs(p.frequency_penalty)) <= most
    )


def _is_in_order(p: SamplingParams, stages: Sequence[str]) -> bool:
    """Return whether each stage comes once, top-k before all else that leaves candidates out.

    llama.cpp aborts where one sorts what was sorted before, or wants more than there are.
    """
    cuts = [name for name in stages if name in ("top_k", "top_p", "min_p")]
    is_once = len(set(stages)) == len(stages)
    is_cold_last = p.temperature > 0 or stages[-1:] == ["temperature"]
    return is_once and cuts[:1] == ["top_k"] and is_cold_last


@dataclass(slots=True)
class _DeviceChain:
    chain: Chain
    has_started: bool = False
    """The prompt has been read: from its last row the first token was chosen, on the host."""
    is_attached: bool = False


class DeviceSampling:
    """Which chain is attached to which sequence of a context; used by the engine's thread alone."""

    def __init__(self, attach: Attach, device: Device) -> None:
        self._attach = attach
        self._device = device
        self._chains: dict[int, _DeviceChain] = {}

    def offer(self, seq: int, sampler: LlamaSampler, params: SamplingParams) -> bool:
        """Run a task's chain on the device for its later tokens, if that changes none of them."""
        chain = sampler.lone_chain
        if not params.backend_sampling or not self._device.is_able or chain is None:
            return False
        if not fits(params, self._device, sampler.biases):
            return False
        self._detach(seq)
        entry = self._chains[seq] = _DeviceChain(chain, has_started=sampler.has_started)
        chain.before_free = partial(self._detach, seq, entry)
        return True

    def before(self, rows: Sequence[BatchRow]) -> None:
        """Attach the chains whose rows come with the next batch."""
        if not self._chains:
            return
        for row in rows:
            entry = self._chains.get(row.seq)
            if (
                entry is not None
                and row.wants_logits
                and entry.has_started
                and not entry.is_attached
            ):
                self._attach_chain(row.seq, entry)

    def after(self, rows: Sequence[BatchRow]) -> None:
        """Note whose prompts have been read by a batch that was computed."""
        if not self._chains:
            return
        for row in rows:
            entry = self._chains.get(row.seq)
            if entry is not None and row.wants_logits:
                entry.has_started = True

    def close(self) -> None:
        """Detach everything: the context is about to go, and tasks may end after it."""
        for seq in list(self._chains):
            self._detach(seq)

    def _attach_chain(self, seq: int, entry: _DeviceChain) -> None:
        entry.is_attached = self._attach(seq, entry.chain.handle)
        if not entry.is_attached:
            logger.warning(
                "back-end sampling refused by the device",
                extra={"slot": seq, "action": "its tokens are sampled on the CPU"},
            )
            del self._chains[seq]

    def _detach(self, seq: int, entry: _DeviceChain | None = None) -> None:
        """Detach a sequence's chain, unless it was detached already or replaced."""
        found = self._chains.get(seq)
        if found is None or (entry is not None and found is not entry):
            return
        del self._chains[seq]
        if found.is_attached:
            self._attach(seq, None)


def are_candidates_nan(context: Any, index: int) -> bool:
    """Return whether the device chose the token at a position of the batch among NaN alone.

    llama.cpp copies the logits of the last candidates beside the token.
    """
    logits = lib.llama_get_sampled_logits_ith(context, index)
    if not logits or not math.isnan(logits[0]):
        return False
    n = int(lib.llama_get_sampled_logits_count_ith(context, index))
    return all(map(math.isnan, logits[:n]))


def open_device_sampling(
    context: Any, vocabulary: LlamaVocabulary, config: WorkerConfig
) -> DeviceSampling:
    """Return the device sampling of a context."""
    device = Device(
        n_vocab=vocabulary.n_tokens,
        suppressed=vocabulary.suppressed(),
        drafts=longest_draft(config) > 0,
        is_able=config.split_mode != "tensor",
    )
    if config.sampling.backend_sampling and not device.is_able:
        logger.warning(
            "option without effect",
            extra={
                "option": "--backend-sampling",
                "cause": "llama.cpp refuses it with -sm tensor",
                "action": "tokens are sampled on the CPU",
            },
        )

    def attach(seq: int, chain: Any) -> bool:
        return bool(lib.llama_set_sampler(context, seq, chain))

    return DeviceSampling(attach, device)
