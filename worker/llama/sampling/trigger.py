"""Waits for the text where a grammar begins to hold, as llama.cpp's lazy grammars do.

llama.cpp's trigger is a regular expression that is run over the whole text at each token, and a
token that reaches beyond the trigger and does not fit ends the process. Here plain texts are
searched at the end, and the grammar gets the tokens since the trigger only if it allows them.
"""

from collections.abc import Callable, Sequence


class Trigger:
    """Watches the tokens of one task."""

    def __init__(
        self,
        texts: Sequence[str],
        pieces: Sequence[bytes],
        tokenize: Callable[[str], Sequence[int]],
    ) -> None:
        self._texts = tuple(text.encode() for text in texts)
        self._pieces = pieces
        self._tokenize = tokenize
        self._tail: list[int] = []
        self._longest = max(len(text) for text in self._texts)

    def watch(self, token: int) -> Sequence[int] | None:
        """Take a token; return those that the grammar must be shown once a trigger has come."""
        if not self._pieces[token]:
            return None  # no grammar allows a token without text
        self._tail.append(token)
        text = b"".join([self._pieces[recent] for recent in self._tail])
        starts = [start for wanted in self._texts if (start := text.find(wanted)) >= 0]
        if starts:
            return self._from(min(starts), text)
        while len(text) - len(self._pieces[self._tail[0]]) >= self._longest:
            text = text[len(self._pieces[self._tail.pop(0)]) :]
        return None

    def _from(self, start: int, text: bytes) -> Sequence[int]:
        """Return the tokens of the text from the trigger on, which may begin inside one."""
        at = 0
        for i, token in enumerate(self._tail):
            if at == start:
                return self._tail[i:]
            at += len(self._pieces[token])
        return self._tokenize(text[start:].decode(errors="replace"))
