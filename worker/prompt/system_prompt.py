"""The system prompt of old llama-servers: tokens before every plain prompt of this worker.

Slots cache them like any shared prefix, so each slot reads them once. Chats have a system message
of their own, and infills have no place for one: neither gets them.
"""

from dataclasses import replace

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Generate
from protocol.wire.side_tasks import SetSystemPrompt, SystemPromptSet
from worker.engine.backend import Backend
from worker.engine.media import Media


class SystemPrefix:
    """Owns the tokens and the anti-prompt; `set` must not run beside other calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tokens: list[int] = []
        self._anti_prompt = ""
        self.current: SetSystemPrompt | None = None
        """The last system prompt that was set."""

    def set(self, message: SetSystemPrompt) -> SystemPromptSet:
        """Use another text from the next prompt on; raises `TaskError` if it does not fit."""
        tokens: list[int] = []
        if message.prompt:
            tokens = self._backend.tokenize(message.prompt, add_special=True, parse_special=True)
        n_ctx = self._backend.card.n_ctx
        if len(tokens) >= n_ctx:
            raise TaskError(
                ErrorCode.CONTEXT_EXCEEDED,
                f"the system prompt ({len(tokens)} tokens) fills the context ({n_ctx} tokens)",
                param="system_prompt",
                detail={"n_prompt_tokens": len(tokens), "n_ctx": n_ctx},
            )
        self._tokens, self._anti_prompt = tokens, message.anti_prompt
        self.current = message
        return SystemPromptSet()

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def adapt(self, message: Generate) -> Generate:
        """Let a plain prompt stop where the user's turn would begin, and keep the prefix."""
        if message.chat is not None or message.infill is not None:
            return message
        params = message.params
        if self._anti_prompt and self._anti_prompt not in params.stop:
            params = replace(params, stop=(*params.stop, self._anti_prompt))
        if params.n_keep >= 0 and self._tokens:
            params = replace(params, n_keep=params.n_keep + len(self._tokens))
        return message if params is message.params else replace(message, params=params)

    def prepend(self, message: Generate, tokens: list[int]) -> list[int]:
        """Put the prefix before a prompt, which was tokenized without BOS then."""
        return tokens if message.infill is not None else self._tokens + tokens

    def lead_media(self, tokens: list[int], media: Media) -> tuple[list[int], Media]:
        """Do the same for a prompt with media, whose BOS is dropped here."""
        if not self._tokens:
            return tokens, media
        has_bos = self._backend.vocabulary.add_bos and tokens[:1] == self._tokens[:1]
        moved = len(self._tokens) - has_bos
        return (
            self._tokens + tokens[has_bos:],
            {start + moved: piece for start, piece in media.items()},
        )
