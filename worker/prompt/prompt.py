"""From what a client wrote to the tokens that a slot reads: template, tokenizing, limits.

Runs on the threads of `worker.link.preparation`, several at once: it reads the vocabulary only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.facts import ModelCard
from protocol.wire.messages import (
    Detokenize,
    Detokenized,
    Envelope,
    Generate,
    TaskKey,
    Terminal,
    Tokenize,
    Tokenized,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Embed, Render, Rendered, SetSystemPrompt, SystemPromptSet
from worker.embedding.inputs import MediaInput
from worker.engine.adapters import check_scales
from worker.engine.backend import Backend, Sampler
from worker.engine.media import without_placeholders
from worker.engine.task import EngineTask
from worker.output.chat_parser.parser import ChatParser, Expected
from worker.prompt.chat.built_in import BuiltInReader
from worker.prompt.chat.conversation import ChatPrompt, ConversationReader
from worker.prompt.infill import InfillRules, check_infill, infill_prompt
from worker.prompt.prompt_log import PromptLog
from worker.prompt.structured import with_grammar
from worker.prompt.system_prompt import SystemPrefix
from worker.prompt.tokens import PromptTokenizer

IS_ENCODER = "This model is an encoder: it makes embeddings and does not generate"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A generation that the engine can begin."""

    task: EngineTask
    parser: ChatParser | None
    """What takes its answer apart, if anything does."""


class PromptReader:
    """Turns messages of the wire into tasks of the engine."""

    def __init__(
        self,
        backend: Backend,
        *,
        cuts_long: bool,
        chat_stop: str = "",
        prompt_log: PromptLog | None = None,
    ) -> None:
        self._prompt_log = prompt_log or PromptLog()
        self._backend = backend
        self._card = backend.card
        self._chat_stop = chat_stop
        self._system = SystemPrefix(backend)
        reader = ConversationReader if self._card.jinja else BuiltInReader
        self._conversations: ConversationReader | BuiltInReader = reader(self._card)
        self._shown = shown_tokens(backend, self._conversations.markers)
        self._tokens = PromptTokenizer(backend, cuts_long=cuts_long)

    def prepare(self, envelope: Envelope) -> Prepared | MediaInput | Terminal:
        """Do all of a task that needs no engine; raises `TaskError` for what cannot be done."""
        match message := envelope.payload:
            case Generate():
                task, expected = self._read(envelope.task, message, envelope.slot)
                parser = parser_of(expected, is_whole=not task.params.stream)
                return Prepared(replace(task, sampler=self._sampler_of(task)), parser)
            case Render():
                return self.render(message)
            case Embed():
                (text,) = message.inputs
                assert isinstance(text, str), "the gateway lets no tokens stand beside media"
                return MediaInput(message, *self._backend.read_media(text, message.media))
            case SetSystemPrompt():
                return self.set_system_prompt(message)
            case Tokenize():
                return self._tokenized(message)
            case Detokenize():
                tokens = self._tokens.valid_tokens(message.tokens)
                content = self._backend.vocabulary.render(tokens)
                return Detokenized(content=content)
        raise AssertionError(f"{type(message).__name__} needs no preparation")

    def _sampler_of(self, task: EngineTask) -> Sampler:
        """Build the sampler here: reading a grammar takes the engine's thread too long."""
        prompt = without_placeholders(task.prompt)
        return self._backend.open_sampler(task.params, prompt, task.triggers)

    def _tokenized(self, message: Tokenize) -> Tokenized:
        tokens = self.tokenize(message)
        pieces = self._backend.vocabulary.special_pieces if message.with_pieces else ()
        return Tokenized(
            tokens=tuple(tokens),
            pieces=tuple([pieces[token] for token in tokens]) if pieces else (),
        )

    def _settled(self, message: Generate) -> Generate:
        """Add what this server says beside the request: its own limit, and the stop of its chats.

        `n_predict` of -1 is llama-server's -n, as there, even if the request says -1 itself.
        """
        params = message.params
        if params.n_predict == -1 and self._card.defaults.n_predict != -1:
            params = replace(params, n_predict=self._card.defaults.n_predict)
        if params.reasoning_budget_tokens == -1:
            budget = self._card.defaults.reasoning_budget_tokens
            params = replace(params, reasoning_budget_tokens=budget)
        if message.echo and params.n_probs > 0:
            params = replace(params, cache_prompt=False)  # only what is read can be judged
        if message.chat is not None and self._chat_stop:
            params = replace(params, stop=(self._chat_stop, *params.stop))
        params = self._tokens.in_tokens(params)
        return message if params is message.params else replace(message, params=params)

    def set_system_prompt(self, message: SetSystemPrompt) -> SystemPromptSet:
        """Let every plain prompt begin with a text; raises `TaskError`."""
        self._tokens.check_length(message.prompt)
        return self._system.set(message)

    @property
    def system_prompt(self) -> SetSystemPrompt | None:
        """What every plain prompt begins with, as it was set last."""
        return self._system.current

    def task(self, key: TaskKey, message: Generate, slot: int = -1) -> EngineTask:
        """Tokenize a generation; raises `TaskError` for what cannot be run."""
        return self._read(key, message, slot)[0]

    def _read(
        self, key: TaskKey, message: Generate, slot: int
    ) -> tuple[EngineTask, Expected | None]:
        """Return a generation's task, and what its answer may hold if that is to be parsed."""
        check_scales(message.params.lora or (), self._card.n_lora)
        message = with_grammar(self._system.adapt(message))
        if not self._card.can_generate:
            raise TaskError(ErrorCode.NOT_SUPPORTED, IS_ENCODER)
        _check_budget(message, self._card)
        message = self._settled(message)
        chat = None if message.chat is None else self._conversations.read(message.chat)
        if chat is not None:
            message = replace(message, params=_chat_params(message.params, chat))
        if message.media:
            return self._answered(self._media_task(key, message, slot, chat), chat)
        echo_from = -1
        if chat is not None:
            tokens = self._tokens.read(self._without_bos(chat.text))
            text = self._backend.vocabulary.render(tokens) if message.tells_prompt else ""
        else:
            own = self._plain_tokens(message)
            text = self._backend.vocabulary.render(own)
            tokens = self._system.lead(message, own)
            if message.echo:
                echo_from = len(tokens) - len(own) + self._has_bos(message, own)
        self._log(key, tokens, text)
        tokens, truncated = self._tokens.fit(tokens, message.params.n_keep)
        if truncated and message.echo:
            raise self._tokens.too_long(len(tokens))
        task = EngineTask(
            key=key,
            prompt=tokens,
            params=message.params,
            slot=slot,
            salt=message.salt,
            text=text,
            truncated=truncated,
            echo_from=echo_from,
        )
        return self._answered(task, chat)

    def _log(self, key: TaskKey, tokens: list[int], text: str) -> None:
        """Write the prompt down, if that was asked for."""
        if self._prompt_log:
            shown = text or self._backend.vocabulary.render(tokens)
            self._prompt_log.note(key.id, len(tokens), shown)

    def _has_bos(self, message: Generate, tokens: list[int]) -> bool:
        """Tell whether the tokens of a prompt begin with a BOS that the client did not write."""
        vocabulary = self._backend.vocabulary
        prompt = message.prompt or ""
        leads = isinstance(prompt, str) or isinstance(prompt[0], str)
        adds = leads and vocabulary.add_bos and not self._system
        return adds and tokens[:1] == [vocabulary.special.bos]

    def _answered(
        self, task: EngineTask, chat: ChatPrompt | None
    ) -> tuple[EngineTask, Expected | None]:
        """Add what a chat's parser needs of the engine."""
        if chat is None or chat.expected is None:
            return task, None
        # The tokens of a thought are counted one by one, streamed or not.
        counts = chat.expected.thoughts is not None
        task = replace(task, shown=self._shown, triggers=chat.triggers, tells_tokens=counts)
        return task, chat.expected

    def _plain_tokens(self, message: Generate) -> list[int]:
        """Read a prompt that is no chat."""
        prompt = message.prompt if message.prompt is not None else ""
        if message.infill is None:
            return self._tokens.read(prompt, add_special=not self._system)
        check_infill(self._backend.vocabulary)
        rules = InfillRules(
            n_batch=self._backend.n_batch,
            n_ctx=self._card.n_ctx,
            n_predict=self._card.defaults.n_predict,
            suffix_first=self._card.suffix_first,
        )
        for text in (message.infill.prefix, message.infill.suffix):
            self._tokens.valid_tokens(tuple(one for one in text if isinstance(one, int)))
        begun = self.tokenize(Tokenize(content=prompt)) if prompt else []
        vocabulary = self._backend.vocabulary
        return infill_prompt(message.infill, begun, vocabulary, self._user_text, rules)

    def _user_text(self, text: str) -> list[int]:
        """Tokenize text that means nothing but itself, whatever it looks like."""
        self._tokens.check_length(text)
        return self._backend.tokenize(text, add_special=False, parse_special=False)

    def _media_task(
        self, key: TaskKey, message: Generate, slot: int, chat: ChatPrompt | None
    ) -> EngineTask:
        """Read a prompt with images or sounds in it; its middle is never cut out."""
        text = message.prompt
        if chat is not None:
            text = self._without_bos(chat.text)
        if not isinstance(text, str):
            raise InvalidRequest("media need a prompt that is text", param="prompt")
        self._tokens.check_length(text)
        tokens, media = self._backend.read_media(text, message.media)
        if message.chat is None:
            tokens, media = self._system.lead_media(tokens, media)
        if len(tokens) >= self._card.n_ctx:
            raise self._tokens.too_long(len(tokens))
        return EngineTask(
            key=key,
            prompt=tokens,
            params=message.params,
            slot=slot,
            salt=message.salt,
            text=text.replace(self._card.media_marker, ""),
            media=media,
        )

    def render(self, message: Render) -> Rendered:
        """Write a conversation as text, and count its tokens; the context need not hold them."""
        text = self._without_bos(self._conversations.read(message.chat).text)
        self._tokens.check_length(text)
        if message.media:
            tokens, _ = self._backend.read_media(text, message.media)
        else:
            tokens = self._tokens.read(text)
        return Rendered(prompt=text, n_tokens=len(tokens))

    def tokenize(self, message: Tokenize) -> list[int]:
        """Tokenize a text, or texts and tokens mixed."""
        return self._tokens.read(
            message.content, add_special=message.add_special, parse_special=message.parse_special
        )

    def _without_bos(self, text: str) -> str:
        """Drop a BOS that the template wrote, where the tokenizer will add one."""
        bos = self._card.bos_token
        if bos and self._backend.vocabulary.add_bos and text.startswith(bos):
            return text[len(bos) :]
        return text


def _check_budget(message: Generate, card: ModelCard) -> None:
    """Refuse a budget for the thoughts of a plain prompt that does not say what marks them."""
    params = message.params
    is_marked = params.reasoning_budget_start_tag and params.reasoning_budget_end_tags
    if message.chat is not None or is_marked:
        return
    is_asked = params.reasoning_budget_tokens not in (-1, card.defaults.reasoning_budget_tokens)
    if is_asked or params.reasoning_control:
        raise InvalidRequest(
            "Thoughts can only be bounded where reasoning_budget_start_tag and"
            " reasoning_budget_end_tags say what marks them",
            param="reasoning_budget_tokens" if is_asked else "reasoning_control",
        )


def _chat_params(params: SamplingParams, chat: ChatPrompt) -> SamplingParams:
    """Add what the template says of the answer."""
    start, *ends = chat.thoughts or ("",)
    return replace(
        params,
        grammar=chat.grammar or params.grammar,
        reasoning_budget_start_tag=start,
        reasoning_budget_end_tags=tuple(ends),
        generation_prompt=chat.begun,
    )


def parser_of(expected: Expected | None, *, is_whole: bool) -> ChatParser | None:
    """Make the parser of an answer; it has read what the client began of that already."""
    return None if expected is None else ChatParser(expected, is_whole=is_whole)


def shown_tokens(backend: Backend, markers: Sequence[str]) -> frozenset[int]:
    """Find the control tokens that are written in markers: a parser must see their text."""
    pieces, special = backend.vocabulary.pieces, backend.vocabulary.special_pieces
    found = set[int]()
    for marker in markers:
        for token in backend.tokenize(marker, add_special=False, parse_special=True):
            text = special[token].decode(errors="replace")
            if not pieces[token] and text and text in marker:
                found.add(token)
    return frozenset(found)
