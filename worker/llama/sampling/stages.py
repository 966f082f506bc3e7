"""Sampling stages of our own, over the same array of candidates as llama.cpp's.

llama.cpp removed two of them: `tfs_z` in October 2024 (PR 10071), `penalize_nl` in December 2024
(PR 10803). The third goes before its `infill`, which is too slow for a whole vocabulary.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import llama_cpp.llama_cpp as lib
import numpy as np

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class Stage(Protocol):
    """Something that changes candidates in place."""

    def apply(self, candidates: Any) -> None:
        """Change a `llama_token_data_array`."""

    def accept(self, token: int) -> None:
        """Learn which token was chosen; by default nothing."""
        return

    def free(self) -> None:
        """Free memory of llama.cpp; by default there is none."""
        return


def view(candidates: Any) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Look at a `llama_token_data_array` as numpy records, without a copy."""
    address = ctypes.cast(candidates.data, ctypes.c_void_p).value
    assert address is not None
    raw = (ctypes.c_char * (candidates.size * CANDIDATE.itemsize)).from_address(address)
    return np.frombuffer(raw, CANDIDATE)


def likeliest(values: "np.ndarray[Any, Any]", n: int) -> "np.ndarray[Any, np.dtype[np.intp]]":
    """Return the places of the `n` greatest values, the greatest first; of equals the first.

    Sorting 262,144 values with their places takes 20 ms, finding the greatest of them 1 ms.
    """
    if n >= len(values):
        return np.argsort(-values, kind="stable")
    if n <= 0:
        return np.empty(0, np.intp)
    least = np.partition(values, len(values) - n)[len(values) - n]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: n - len(above)]
    found = np.sort(np.concatenate((above, equal)))
    return found[np.argsort(-values[found], kind="stable")]


class TailFree(Stage):
    """Tail free sampling (Phénix & Egan, 2019), as llama.cpp had it until October 2024."""

    def __init__(self, z: float, min_keep: int) -> None:
        self._z = z
        self._min_keep = max(1, min_keep)

    def apply(self, candidates: Any) -> None:
        """Cut where the curvature of the sorted probabilities has spent the share `z`."""
        items = view(candidates)
        if len(items) <= 2:
            return
        logits = np.sort(items["logit"])[::-1]
        p = np.exp(logits - logits[0], dtype=np.float64)
        p /= p.sum()
        curvature = np.abs(np.diff(p, 2))
        total = curvature.sum()
        weights = curvature / total if total > 1e-6 else np.full(len(curvature), 1 / len(curvature))
        beyond = np.flatnonzero(np.cumsum(weights) > self._z)
        size = len(items) if len(beyond) == 0 else max(int(beyond[0]), self._min_keep)
        kept = items[likeliest(items["logit"], size)]
        items[: len(kept)] = kept
        candidates.size, candidates.sorted = len(kept), True


class InfillEnding(Stage):
    """The first rule of llama.cpp's `infill` over all candidates: whether the text is to end.

    Source: `llama_sampler_infill_apply`, src/llama-sampler.cpp. The rule depends on the number of
    candidates, so that it goes before the cut that bounds what `infill` compares.
    """

    def __init__(self, eog: Sequence[int], n_vocab: int) -> None:
        self._is_end = np.zeros(n_vocab, np.bool_)
        self._is_end[list(eog)] = True

    def apply(self, candidates: Any) -> None:
        """Leave only the tokens that end a text where these are likely enough."""
        items = view(candidates)
        is_end = self._is_end[items["id"]]
        p = np.exp(items["logit"] - items["logit"].max(), dtype=np.float64)
        p_end = p[is_end].sum()
        if 3 * p_end * len(items) > p.sum() - p_end:
            ends = items[is_end]
            items[: len(ends)] = ends
            candidates.size, candidates.sorted = len(ends), False


class KeepNewline(Stage):
    """Remembers the newline's logit before the penalties, for `RestoreNewline`."""

    def __init__(self, newline: int) -> None:
        self._newline = newline
        self._logit: float | None = None

    def apply(self, candidates: Any) -> None:
        """Remember the logit."""
        items = view(candidates)
        found = np.flatnonzero(items["id"] == self._newline)
        self._logit = float(items["logit"][found[0]]) if len(found) else None

    def restore(self, candidates: Any) -> None:
        """Put the logit back."""
        items = view(candidates)
        found = np.flatnonzero(items["id"] == self._newline)
        if self._logit is not None and len(found):
            items["logit"][found[0]] = self._logit
            candidates.sorted = False


class RestoreNewline(Stage):
    """Puts the newline's logit back after the penalties."""

    def __init__(self, kept: KeepNewline) -> None:
        self._kept = kept

    def apply(self, candidates: Any) -> None:
        """Put the logit back."""
        self._kept.restore(candidates)


class Dummy:
    """A few equal candidates, for draws that are dropped."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._items = (lib.llama_token_data * n)()
        self._data = ctypes.cast(self._items, ctypes.POINTER(lib.llama_token_data))
        self._raw = lib.llama_token_data_array()

    def fresh(self) -> Any:
        """Return a reference to all of them again."""
        raw = self._raw
        raw.data, raw.size, raw.selected, raw.sorted = self._data, self._n, -1, False
        return ctypes.byref(raw)


class Candidates:
    """The scratch array of all tokens; one for the engine thread, refilled before each use."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._items = np.zeros(n_vocab, CANDIDATE)
        self.raw = lib.llama_token_data_array()
        self._data = self._items.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))

    def fill(self, logits: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> Any:
        """Start over with every token and its raw logit."""
        self._items["id"] = self._ids
        self._items["logit"] = logits
        self._items["p"] = 0.0
        self.raw.data, self.raw.size = self._data, len(self._items)
        self.raw.selected, self.raw.sorted = -1, False
        return self.raw

    def selected(self) -> int:
        """Return the chosen token, or -1."""
        index = int(self.raw.selected)
        return int(view(self.raw)["id"][index]) if 0 <= index < self.raw.size else -1

    def any_possible(self) -> bool:
        """Whether any token is left that is not at -inf."""
        return bool(np.isfinite(view(self.raw)["logit"]).any())
