"""Converts requests to the tokens that a slot reads: template, tokenizing, limits.

Runs on the threads of `worker.link.tasks.preparation`, several at once: it only reads the
vocabulary.
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
from protocol.wire.side_tasks import (
    Embed,
    Render,
    Rendered,
    Rerank,
    SetSystemPrompt,
    SystemPromptSet,
)
from worker.embedding.inputs import InputReader, LongInputs, MediaInput
from worker.engine.adapters import check_scales
from worker.engine.backend import Backend
from worker.engine.prompt_logprobs import check_echo
from worker.engine.resume import open_sampler, resume_task
from worker.engine.task import EngineTask, naming
from worker.output.chat_parser.parser import ChatParser, ExpectedParts
from worker.output.continued import AnswerParser, ContinuedAnswer
from worker.output.recorded import RecordedAnswer
from worker.prompt.chat.built_in import BuiltInReader
from worker.prompt.chat.conversation import ChatPrompt, ConversationReader
from worker.prompt.choices import Choices
from worker.prompt.infill import InfillRules, check_infill, infill_prompt
from worker.prompt.media import read_media
from worker.prompt.prompt_log import PromptLog
from worker.prompt.structured import with_grammar
from worker.prompt.system_prompt import SystemPrefix
from worker.prompt.tokens import PromptTokenizer

IS_ENCODER = "This model is an encoder: it makes embeddings and does not generate"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A generation task that is ready for the engine."""

    task: EngineTask
    parser: AnswerParser | None
    """Parser of its answer, if it is parsed."""


class PromptReader:
    """Converts messages of the wire to tasks of the engine."""

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
        embedder = backend.embedder
        self._inputs = InputReader(backend, embedder) if embedder is not None else None
        self._tokens = PromptTokenizer(backend, cuts_long=cuts_long)

    def prepare(
        self, envelope: Envelope, choices: Choices | None = None
    ) -> Prepared | MediaInput | LongInputs | Terminal:
        """Do all preparation that needs no engine; raises `TaskError` if the task is invalid.

        Tasks with the same `choices` share what is the same for each.
        """
        match message := envelope.payload:
            case Generate():
                if choices is None or self._prompt_log:  # each task is logged
                    choices = Choices()
                return self._generation(envelope, message, choices)
            case Render():
                return self.render(message)
            case Embed() if message.media:
                (text,) = message.inputs
                assert isinstance(text, str), "the gateway lets no tokens stand beside media"
                return MediaInput(message, *read_media(self._backend, text, message))
            case Embed() | Rerank():
                assert self._inputs is not None, "who makes no embeddings refuses them before"
                return self._inputs.read_long(message)
            case SetSystemPrompt():
                return self.set_system_prompt(message)
            case Tokenize():
                return self._tokenized(message)
            case Detokenize():
                tokens = self._tokens.valid_tokens(message.tokens)
                content = self._backend.vocabulary.render(tokens)
                return Detokenized(content=content)
        raise AssertionError(f"{type(message).__name__} needs no preparation")

    def _generation(self, envelope: Envelope, message: Generate, choices: Choices) -> Prepared:
        """Read a generation; if another worker began its answer, what was said is replayed.

        The sampler is built here: parsing a grammar would block the engine's thread too long.
        """
        task, expected = choices.read(envelope, message, self._read)
        chat = parser_of(expected, is_whole=not task.params.stream)
        parser: AnswerParser | None = chat
        if message.partial_answer is not None:
            task = resume_task(task, message.partial_answer, self._backend.vocabulary)
            if task.resumed is not None and message.partial_answer.tokens:
                parser = ContinuedAnswer(chat, message.partial_answer, task.resumed.text)
        if parser is not None and message.returns_prompt and not task.params.stream:
            parser = RecordedAnswer(parser, task.resumed.text if task.resumed is not None else "")
        field = _grammar_field(message)
        try:
            sampler = open_sampler(self._backend, task)
        except TaskError as error:
            raise naming(error, field) from error
        return Prepared(replace(task, sampler=sampler, grammar_field=field), parser)

    def _tokenized(self, message: Tokenize) -> Tokenized:
        tokens = self.tokenize(message)
        pieces = self._backend.vocabulary.special_pieces if message.with_pieces else ()
        return Tokenized.of(tokens, [pieces[token] for token in tokens] if pieces else ())

    def _settled(self, message: Generate) -> Generate:
        """Apply the server's own settings to a request: its token limit, and the stop of its chats.

        `n_predict` of -1 is llama-server's -n, as there, even if the request says -1 itself.
        """
        params = message.params
        if params.n_predict == -1 and self._card.defaults.n_predict != -1:
            params = replace(params, n_predict=self._card.defaults.n_predict)
        if params.reasoning_budget_tokens == -1:
            budget = self._card.defaults.reasoning_budget_tokens
            params = replace(params, reasoning_budget_tokens=budget)
        if message.echo and params.n_probs > 0:
            params = replace(params, cache_prompt=False)  # only parsed text can be checked
        if message.chat is not None and self._chat_stop:
            params = replace(params, stop=(self._chat_stop, *params.stop))
        params = self._tokens.in_tokens(params)
        return message if params is message.params else replace(message, params=params)

    def set_system_prompt(self, message: SetSystemPrompt) -> SystemPromptSet:
        """Set the text before every plain prompt; raises `TaskError`."""
        self._tokens.check_length(message.prompt)
        return self._system.set(message)

    @property
    def system_prompt(self) -> SetSystemPrompt | None:
        """The current system prompt of plain prompts."""
        return self._system.current

    def _read(
        self, key: TaskKey, message: Generate, slot: int
    ) -> tuple[EngineTask, ExpectedParts | None]:
        """Tokenize a generation; returns its task, and the expected answer if it is parsed."""
        check_scales(message.params.lora or (), self._card.n_lora)
        message = with_grammar(self._system.adapt(message))
        _check_able(message, self._card)
        message = self._settled(message)
        chat = None if message.chat is None else self._conversations.read(message.chat)
        if chat is not None:
            message = replace(message, params=_chat_params(message.params, chat))
        if message.media:
            return self._answered(self._media_task(key, message, slot, chat), chat)
        echo_from = -1
        if chat is not None:
            tokens = self._tokens.read(self._without_bos(chat.text))
            text = self._backend.vocabulary.render(tokens) if message.returns_prompt else ""
        else:
            own = self._plain_tokens(message)
            text = self._backend.vocabulary.render(own)
            tokens = self._system.prepend(message, own)
            if message.echo:
                echo_from = len(tokens) - len(own) + self._has_bos(message, own)
        self._log(key, tokens, text)
        tokens, truncated = self._fit(message, tokens)
        task = EngineTask(
            key=key,
            prompt=tokens,
            params=message.params,
            slot=slot,
            salt=message.salt,
            tenant=message.tenant,
            chain=b"" if truncated else message.chain,
            text=text,
            truncated=truncated,
            echo_from=echo_from,
        )
        return self._answered(task, chat)

    def _fit(self, message: Generate, tokens: list[int]) -> tuple[list[int], bool]:
        """Return a prompt and whether it was cut to fit; raises `TaskError` if it has no echo."""
        fitting, truncated = self._tokens.fit(tokens, message.params.n_keep)
        if message.echo:
            if truncated:
                raise self._tokens.too_long(len(tokens))
            check_echo(len(tokens), message.params.n_probs)
        return fitting, truncated

    def _log(self, key: TaskKey, tokens: list[int], text: str) -> None:
        """Log the prompt, if configured."""
        if self._prompt_log:
            shown = text or self._backend.vocabulary.render(tokens)
            self._prompt_log.note(key.id, len(tokens), shown)

    def _has_bos(self, message: Generate, tokens: list[int]) -> bool:
        """Return whether a prompt's tokens begin with a BOS that the client did not write."""
        vocabulary = self._backend.vocabulary
        prompt = message.prompt or ""
        leads = isinstance(prompt, str) or isinstance(prompt[0], str)
        adds = leads and vocabulary.add_bos and not self._system
        return adds and tokens[:1] == [vocabulary.special.bos]

    def _answered(
        self, task: EngineTask, chat: ChatPrompt | None
    ) -> tuple[EngineTask, ExpectedParts | None]:
        """Add the settings that a chat's parser needs from the engine."""
        if chat is None or chat.expected is None:
            return task, None
        # Reasoning tokens are counted one by one, streamed or not.
        counts = chat.expected.reasoning_marks is not None
        task = replace(task, shown=self._shown, triggers=chat.triggers, reports_tokens=counts)
        return task, chat.expected

    def _plain_tokens(self, message: Generate) -> list[int]:
        """Tokenize a prompt that is not a chat."""
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
            self._tokens.valid_tokens(tuple(token for token in text if isinstance(token, int)))
        prefix = self.tokenize(Tokenize(content=prompt)) if prompt else []
        vocabulary = self._backend.vocabulary
        return infill_prompt(message.infill, prefix, vocabulary, self._user_text, rules)

    def _user_text(self, text: str) -> list[int]:
        """Tokenize a client's text without parsing special tokens in it; what is long gets cut."""
        return self._backend.tokenize(text, add_special=False, parse_special=False)

    def _media_task(
        self, key: TaskKey, message: Generate, slot: int, chat: ChatPrompt | None
    ) -> EngineTask:
        """Read a prompt with images or sounds; it is never shortened."""
        text = message.prompt
        if chat is not None:
            text = self._without_bos(chat.text)
        if not isinstance(text, str):
            problem = "Field 'prompt': must be a text where there are images or sounds"
            raise InvalidRequest(problem, param="prompt")
        self._tokens.check_length(text)
        tokens, media = read_media(self._backend, text, message)
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
            tenant=message.tenant,
            chain=message.chain,
            text=text.replace(self._card.media_marker, ""),
            media=media,
        )

    def render(self, message: Render) -> Rendered:
        """Render a conversation, and count its tokens; they need not fit into the context."""
        text = self._without_bos(self._conversations.read(message.chat).text)
        if message.media:
            tokens, _ = read_media(self._backend, text, message)
        else:
            tokens = self._tokens.tokenize(text, add_special=True, parse_special=True)
        return Rendered(prompt=text, n_tokens=len(tokens))

    def tokenize(self, message: Tokenize) -> list[int]:
        """Tokenize a text, or texts and tokens mixed."""
        return self._tokens.tokenize(
            message.content, add_special=message.add_special, parse_special=message.parse_special
        )

    def _without_bos(self, text: str) -> str:
        """Remove a BOS that the template wrote, if the tokenizer will add one."""
        bos = self._card.bos_token
        if bos and self._backend.vocabulary.add_bos and text.startswith(bos):
            return text[len(bos) :]
        return text


def _check_able(message: Generate, card: ModelCard) -> None:
    """Refuse what an encoder is asked, and a reasoning budget without marks in a plain prompt."""
    if not card.can_generate:
        raise TaskError(ErrorCode.NOT_SUPPORTED, IS_ENCODER)
    params = message.params
    is_marked = params.reasoning_budget_start_tag and params.reasoning_budget_end_tags
    if message.chat is not None or is_marked:
        return
    is_asked = params.reasoning_budget_tokens not in (-1, card.defaults.reasoning_budget_tokens)
    if is_asked or params.reasoning_control:
        param = "reasoning_budget_tokens" if is_asked else "reasoning_control"
        tags = "reasoning_budget_start_tag and reasoning_budget_end_tags"
        raise InvalidRequest(f"Field '{param}': needs {tags} in a plain prompt", param=param)


def _grammar_field(message: Generate) -> str:
    """Return the field from which the grammar of a request is made, if it has one."""
    if message.params.grammar:
        return "grammar"
    if message.chat is None:
        return "json_schema"
    return "tools" if message.chat.schema is None else "response_format"


def _chat_params(params: SamplingParams, chat: ChatPrompt) -> SamplingParams:
    """Add the parameters that the template determines."""
    start, *ends = chat.reasoning_marks or ("",)
    return replace(
        params,
        grammar=chat.grammar or params.grammar,
        reasoning_budget_start_tag=start,
        reasoning_budget_end_tags=tuple(ends),
        generation_prompt=chat.generation_prompt,
    )


def parser_of(expected: ExpectedParts | None, *, is_whole: bool) -> ChatParser | None:
    """Make the parser of an answer, which has read the part that the client wrote."""
    return None if expected is None else ChatParser(expected, is_whole=is_whole)


def shown_tokens(backend: Backend, markers: Sequence[str]) -> frozenset[int]:
    """Find the control tokens in markers, whose text a parser must see."""
    pieces, special = backend.vocabulary.pieces, backend.vocabulary.special_pieces
    found = set[int]()
    for marker in markers:
        for token in backend.tokenize(marker, add_special=False, parse_special=True):
            text = special[token].decode(errors="replace")
            if not pieces[token] and text and text in marker:
                found.add(token)
    return frozenset(found)
