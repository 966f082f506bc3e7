"""The servers that are compared: how each is started, and what it is asked."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.cores import threads
from tests.models.shallow import shallow_path
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
    """On the model's first layers: what is compared is no text, or what stands before it."""

    @property
    def model(self) -> str:
        """The model's file."""
        return shallow_path() if self.is_shallow else find_model("")


_PLAIN = ("-a", "smol", "-np", "1", "-c", "2048", "-t", str(threads()), "--metrics")

SETUPS: Mapping[str, Setup] = {
    "plain": Setup(arguments=_PLAIN, cases=(*CASES, *CHATS, *SIDE)),
    "no jinja": Setup(arguments=(*_PLAIN, "--no-jinja"), cases=NO_JINJA),
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
