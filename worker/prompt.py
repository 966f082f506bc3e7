"""From what a client wrote to the tokens that a slot reads: template, tokenizing, limits.

Runs on the link's thread: it reads the vocabulary only.
"""

import datetime
import json
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from protocol.errors import ConfigError, ErrorCode, InvalidRequest, TaskError
from protocol.facts import ModelCard
from protocol.messages import Chat, Generate, Tokenize
from worker.engine.backend import Backend
from worker.engine.task import Task

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What llama-server takes for a model without a template."""

BUILT_IN = {"chatml": CHATML}


class ChatTemplate:
    """A compiled chat template; the sandbox keeps a model file from running code here."""

    def __init__(self, source: str, card: ModelCard) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._card = card
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error

    def render(self, chat: Chat) -> str:
        """Write a conversation as the text that the model continues."""
        variables = {
            "bos_token": self._card.bos_token,
            "eos_token": self._card.eos_token,
            "add_generation_prompt": True,
            "tools": None,
            **(chat.kwargs or {}),
        }
        try:
            return self._template.render(messages=list(chat.messages), **variables)
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            message = f"The chat template cannot render these messages: {error}"
            raise InvalidRequest(message, param="messages") from error


def _to_json(value: Any, indent: int | None = None, **_options: Any) -> str:
    """Write JSON as a template expects it: not escaped for HTML, as Jinja's own filter does."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().astimezone().strftime(form)


class PromptReader:
    """Turns messages of the wire into tasks of the engine."""

    def __init__(self, backend: Backend, *, cuts_long: bool) -> None:
        self._backend = backend
        self._card = backend.card
        self._cuts_long = cuts_long
        source = self._card.chat_template or CHATML
        self._template = ChatTemplate(BUILT_IN.get(source, source), self._card)
        self._longest_piece = max(len(piece) for piece in backend.vocabulary.special_pieces)

    def task(self, message: Generate) -> Task:
        """Tokenize a generation; raises `TaskError` for what cannot be run."""
        text = ""
        if message.chat is not None:
            tokens = self._tokens(self._without_bos(self._template.render(message.chat)))
        else:
            tokens = self._tokens(message.prompt if message.prompt is not None else "")
            text = self._backend.vocabulary.render(tokens)
        tokens, truncated = self._fit(tokens, message.params.n_keep)
        return Task(
            task_id=message.task_id,
            attempt=message.attempt,
            prompt=tokens,
            params=message.params,
            slot=message.slot,
            text=text,
            truncated=truncated,
        )

    def tokenize(self, message: Tokenize) -> list[int]:
        """Tokenize a text, or texts and tokens mixed."""
        parts = (message.content,) if isinstance(message.content, str) else message.content
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                self._check_length(part)
                tokens += self._backend.tokenize(
                    part,
                    add_special=message.add_special and i == 0,
                    parse_special=message.parse_special,
                )
            else:
                tokens.append(self._valid(part))
        return tokens

    def valid_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return tokens that the vocabulary has; llama.cpp aborts on others."""
        return tuple(self._valid(token) for token in tokens)

    def _tokens(self, prompt: str | tuple[int | str, ...]) -> list[int]:
        parts = (prompt,) if isinstance(prompt, str) else prompt
        tokens: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                self._check_length(part)
                tokens += self._backend.tokenize(part, add_special=i == 0, parse_special=True)
            else:
                tokens.append(self._valid(part))
        return tokens

    def _valid(self, token: int) -> int:
        if not 0 <= token < self._card.n_vocab:
            raise InvalidRequest("Prompt contains invalid tokens", param="prompt")
        return token

    def _check_length(self, text: str) -> None:
        """Refuse a text before tokenizing that could not fit however it is tokenized."""
        n_least = len(text) // self._longest_piece
        if n_least > 4 * self._card.n_ctx_total:
            raise self._too_long(n_least)

    def _fit(self, tokens: list[int], n_keep: int) -> tuple[list[int], bool]:
        """Refuse a prompt that fills the context, or cut its middle out as the seeds do."""
        n_ctx = self._card.n_ctx
        if len(tokens) < n_ctx:
            return tokens, False
        if not self._cuts_long:
            raise self._too_long(len(tokens))
        n_keep = min(n_ctx - 4, len(tokens) if n_keep < 0 else n_keep)
        block = (n_ctx - n_keep) // 2
        n_erased = (len(tokens) - n_keep - block) // block * block
        return tokens[:n_keep] + tokens[n_keep + n_erased :], True

    def _too_long(self, n_tokens: int) -> TaskError:
        n_ctx = self._card.n_ctx
        return TaskError(
            ErrorCode.CONTEXT_EXCEEDED,
            f"request ({n_tokens} tokens) exceeds the available context size ({n_ctx} tokens),"
            " try increasing it",
            detail={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
        )

    def _without_bos(self, text: str) -> str:
        """Drop a BOS that the template wrote, where the tokenizer will add one."""
        bos = self._card.bos_token
        if bos and self._backend.vocabulary.add_bos and text.startswith(bos):
            return text[len(bos) :]
        return text
