"""The servers that are compared: how each is started, and what it is asked."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.cores import threads
from tests.models.shallow import exact_path
from tests.parity.cases import CASES, Case
from tests.parity.chats import CHATS
from tests.parity.options import CONSTANT, NO_JINJA, TOLD, VARIABLES
from tests.parity.side import SIDE
from tests.parity.vectors import VECTORS
from worker.settings.resolve import find_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One configuration, the same for both servers."""

    arguments: tuple[str, ...]
    cases: tuple[Case, ...]
    is_shallow: bool = False
    """On the model's first layers: both must write the same, whether it makes sense or not."""

    @property
    def model(self) -> str:
        """The model's file."""
        return exact_path() if self.is_shallow else find_model("")


_PLAIN = ("-a", "smol", "-np", "1", "-c", "2048", "-t", str(threads()), "--metrics")

_ALL = (*CASES, *CHATS, *SIDE)
_WHOLE = frozenset(
    (
        *("greedy", "ignore_eos", "n_indent", "stop", "stop string", "stream stop", "n_keep"),
        *("n_probs before a stop", "n_probs of an end", "t_max_predict_ms", "grammar greedy"),
        *("dynatemp", "top_k 3", "top_k off", "typical_p", "xtc", "min_keep", "mirostat 1"),
        *("mirostat 2", "samplers list", "samplers letters", "logit_bias ban"),
        *("logit_bias text", "logit_bias object", "text", "chat", "chat stop", "chat stream"),
        *("chat usage", "chat system", "chat parts", "chat turns", "chat grammar"),
        *("format json_object", "format json_schema", "response plain", "response instructions"),
        *("response items", "response stream", "message plain", "message stop"),
        *("message blocks", "message stream"),
    )
)
"""Asked of the whole model: its text comes to a certain word, or is another than other cases'."""

SETUPS: Mapping[str, Setup] = {
    "plain": Setup(
        arguments=_PLAIN,
        cases=tuple(case for case in _ALL if case.name not in _WHOLE),
        is_shallow=True,
    ),
    "whole": Setup(arguments=_PLAIN, cases=tuple(case for case in _ALL if case.name in _WHOLE)),
    "no jinja": Setup(arguments=(*_PLAIN, "--no-jinja"), cases=NO_JINJA, is_shallow=True),
    "told": Setup(
        arguments=(
            *(*_PLAIN, "--chat-template", VARIABLES, "--chat-template-kwargs", '{"a": [1]}'),
            *("--reasoning", "off", "--reasoning-effort", "low", "--no-reasoning-preserve"),
            "--skip-chat-parsing",
        ),
        cases=TOLD,
        is_shallow=True,
    ),
    "constant": Setup(
        arguments=(*_PLAIN, "--chat-template", "It was a dark and", "-b", "16", "-ub", "1"),
        cases=CONSTANT,
        is_shallow=True,
    ),
    "vectors": Setup(
        arguments=(*_PLAIN, "--embeddings", "--pooling", "mean"), cases=VECTORS, is_shallow=True
    ),
}
