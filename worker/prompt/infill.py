"""Builds the prompt of an infill: texts before and after a gap, with special tokens. Pure.

The order and the budgets are llama-server's (`format_prompt_infill`); where it would refuse what
does not fit, the texts are cut shorter.
"""

from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Infill
from worker.engine.backend import Vocabulary

Mixed = str | tuple[int | str, ...]
Tokenizer = Callable[[str], list[int]]
"""Turns plain text into tokens, without any special ones."""

_REPOSITORY = "myproject\n"
_PRESENT_FILE = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillRules:
    """Limits and order of the prompt."""

    n_batch: int
    """Maximum tokens of the texts around the gap; prefix to suffix as three to one."""
    n_ctx: int
    n_predict: int
    """Default number of tokens to generate; -1 means no limit."""
    suffix_first: bool = False


@dataclass(frozen=True, slots=True)
class _InfillParts:
    """Everything in tokens."""

    prefix: list[int]
    suffix: list[int]
    prompt: list[int]
    extra: list[int]


def check_infill(vocabulary: Vocabulary) -> None:
    """Raise an error if the model has no tokens for infill."""
    if missing := vocabulary.special.missing_for_infill():
        message = f"this model has no infill tokens for {', '.join(missing)}"
        raise TaskError(ErrorCode.NOT_SUPPORTED, message)


def infill_prompt(
    gap: Infill, prompt: list[int], vocabulary: Vocabulary, tokenize: Tokenizer, rules: InfillRules
) -> list[int]:
    """Build the prompt around the gap; `prompt` is the beginning of the gap's text."""
    parts = _InfillParts(
        prefix=_mixed(gap.prefix, tokenize),
        suffix=_suffix(gap.suffix, vocabulary, tokenize),
        prompt=prompt,
        extra=_extra(gap, vocabulary, tokenize),
    )
    tokens = _lay_out(parts, vocabulary, rules, rules.n_batch)
    if len(tokens) >= rules.n_ctx:
        # At most half of the context is kept free for what is to be generated.
        wanted = rules.n_predict if rules.n_predict >= 0 else rules.n_ctx // 4
        room = rules.n_ctx - min(wanted, rules.n_ctx // 2)
        tokens = _lay_out(parts, vocabulary, rules, max(0, min(rules.n_batch, room - len(prompt))))
    return tokens


def _lay_out(
    parts: _InfillParts, vocabulary: Vocabulary, rules: InfillRules, n_batch: int
) -> list[int]:
    special = vocabulary.special
    n_prefix = min(len(parts.prefix), 3 * (n_batch // 4))
    n_suffix = min(len(parts.suffix), max(0, n_batch // 4 - (2 + len(parts.prompt))))
    prefix = [special.fim_pre, *_last(parts.prefix, n_prefix), *parts.prompt]
    suffix = [special.fim_suf, *parts.suffix[:n_suffix]]
    first, second = (suffix, prefix) if rules.suffix_first else (prefix, suffix)
    bos = [special.bos] if vocabulary.add_bos and special.bos >= 0 else []
    around = [*bos, *first, *second, special.fim_mid]
    return _last(parts.extra, _room_for_extra(rules, n_batch, len(around))) + around


def _room_for_extra(rules: InfillRules, n_batch: int, n_around: int) -> int:
    """Return how many tokens of other files fit: llama-server's rule, within the context."""
    n_predict = rules.n_predict if rules.n_predict >= 0 else -1
    room = max(0, rules.n_ctx - n_batch - 2 * n_predict)
    return min(room, max(0, rules.n_ctx - n_around - 1))


def _last(tokens: list[int], n: int) -> list[int]:
    return tokens[len(tokens) - min(n, len(tokens)) :]


def _extra(gap: Infill, vocabulary: Vocabulary, tokenize: Tokenizer) -> list[int]:
    """Write the other files, with repository tokens if the model has them."""
    special = vocabulary.special
    tokens: list[int] = []
    if special.fim_rep >= 0:
        tokens += [special.fim_rep, *tokenize(_REPOSITORY)]
    for name, text in gap.extra:
        if special.fim_sep >= 0:
            tokens += [special.fim_sep, *tokenize(f"{name}\n")]
        else:
            tokens += tokenize(_SNIPPET)
        tokens += tokenize(text)
    if special.fim_sep >= 0:
        tokens += [special.fim_sep, *tokenize(_PRESENT_FILE)]
    return tokens


def _mixed(value: Mixed, tokenize: Tokenizer) -> list[int]:
    """Tokenize the texts in a value; its tokens stay as they are."""
    parts = (value,) if isinstance(value, str) else value
    written = (tokenize(part) if isinstance(part, str) else [part] for part in parts)
    return [token for tokens in written for token in tokens]


def _suffix(text: Mixed, vocabulary: Vocabulary, tokenize: Tokenizer) -> list[int]:
    """Tokenize a suffix without the space that some vocabularies add before every text.

    It would be between the gap and the suffix; llama-server of 2024 removed it too.
    """
    if not isinstance(text, str):
        if not text or not isinstance(text[0], str):
            return _mixed(text, tokenize)
        return _suffix(text[0], vocabulary, tokenize) + _mixed(text[1:], tokenize)
    if not vocabulary.adds_space:
        return tokenize(text)
    if text.startswith(" ") and len(text) > 1:
        return tokenize(text[1:])
    tokens = tokenize(text)
    is_lone = bool(tokens) and vocabulary.special_pieces[tokens[0]] == b" "
    return tokens[1:] if is_lone and not text.startswith(" ") else tokens
