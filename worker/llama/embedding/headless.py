"""Embeddings without the output head, which llama.cpp would compute for every row for no use.

The graph of a language model goes on from its hidden states to the logits of the whole vocabulary,
also where only embeddings are wanted: a quarter of the work of a small model. With pooling `none`
the hidden states are the node `result_embd_pooled` in every architecture (llama-graph.cpp,
build_pooling), and ggml's scheduler ends a graph behind a node if its callback says so
(ggml-backend.cpp, ggml_backend_sched_compute_splits). So the rows are pooled here instead. Where a
graph has no head (encoders) or no such node, llama.cpp computes and pools as usual.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.worker_config import POOLINGS
from protocol.errors import ConfigError
from worker.engine.backend import BatchRow
from worker.llama.batch import Batch
from worker.llama.startup import open_ggml

Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

_STATES, _LOGITS = b"result_embd_pooled", b"result_output"


def _mean(rows: Rows) -> Vector:
    vector: Vector = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return vector


def _first(rows: Rows) -> Vector:
    vector: Vector = rows[0]
    return vector


def _last(rows: Rows) -> Vector:
    vector: Vector = rows[-1]
    return vector


POOLS: dict[str, Callable[[Rows], Vector]] = {"mean": _mean, "cls": _first, "last": _last}
"""Pooling functions of the rows of a sequence, by name, as in llama.cpp."""


class GraphWatch:
    """Callback on the nodes of a context's graphs; must live as long as the context."""

    def __init__(self) -> None:
        self.has_head = False
        """Whether some graph so far had logits after the states."""
        self.n_states = 0
        """Number of nodes of that name; layers after the pooling have it too."""
        self.is_cutting = False
        """Whether graphs are ended after the states."""
        self._is_over = False
        self._callback = lib.ggml_backend_sched_eval_callback(self._asked)
        address = ctypes.cast(open_ggml("ggml-base").ggml_get_name, ctypes.c_void_p).value or 0
        # Called for hundreds of nodes: releasing the GIL each time would cost more.
        self._name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(address)

    def on(self, params: Any) -> Any:
        """Set the callback in a context's parameters, with the pooling that it needs."""
        params.cb_eval = self._callback
        params.pooling_type = POOLINGS.index("none")
        return params

    def begin(self) -> None:
        """Reset the state; call it before each graph."""
        self._is_over = False

    def _asked(self, node: int, is_question: bool, _data: object) -> bool:
        """Answer ggml: whether a node's data is wanted, and with the data, whether to continue."""
        if not is_question:
            return not self._is_over
        name = self._name(node)
        if name == _LOGITS:
            self.has_head = True
        elif name == _STATES:
            self.n_states += 1
            self._is_over = self.is_cutting
        # After the end, parts of the graph on other devices end with their first node too.
        return self._is_over


def watch_for(model: Any, params: Callable[[], Any]) -> GraphWatch | None:
    """Return a watch that ends a model's graphs before the head; None if there is no head.

    One token is computed in a small context of its own; `params` makes those of the real one.
    """
    try:
        watch = GraphWatch()
    except ConfigError:  # llama.cpp was built as one library: its nodes have no names for us
        return None
    probe = watch.on(params())
    probe.n_ctx = probe.n_batch = probe.n_ubatch = probe.n_seq_max = 1
    context = lib.llama_init_from_model(model, probe)
    if not context:
        return None
    batch = Batch(1)
    batch.fill([BatchRow(0, 0, (0,), True)])
    code = int(lib.llama_decode(context, batch.raw))
    lib.llama_free(context)
    watch.is_cutting = code == 0 and watch.has_head and watch.n_states == 1
    return watch if watch.is_cutting else None
