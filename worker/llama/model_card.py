"""What gateways and clients are told of a loaded model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.filenames import readable
from protocol.wire.facts import ModelCard
from worker.engine.backend import Vocabulary
from worker.llama import library
from worker.llama.embedding.context import LlamaEmbedder
from worker.llama.hardware.devices import in_words
from worker.llama.media.reader import MediaReader
from worker.llama.model import LoadedModel, can_generate, trained_context
from worker.llama.vocabulary import LlamaVocabulary

_LONGEST_TEMPLATE = 1024 * 1024
"""Maximum characters of a chat template."""


def describe(
    config: WorkerConfig, loaded: LoadedModel, vocab: LlamaVocabulary, vocabulary: Vocabulary
) -> ModelCard:
    """Return the card of a model that takes texts and generates.

    Raises `ConfigError` for a chat template that no gateway would take.
    """
    model, context = loaded.model, loaded.context
    return ModelCard(
        name=config.alias or readable(Path(config.model).stem),
        aliases=config.aliases,
        tags=config.tags,
        path=readable(config.model),
        n_slots=config.n_slots,
        n_prefetch=config.n_prefetch,
        n_ctx=loaded.n_ctx_slot,
        n_ctx_total=int(lib.llama_n_ctx(context)),
        n_ctx_train=trained_context(model),
        n_vocab=vocab.n_tokens,
        longest_piece=max(map(len, vocabulary.special_pieces)),
        vocab_type=int(lib.llama_vocab_type(vocab.handle)),
        bos_token=vocab.token_text(vocab.bos()),
        eos_token=vocab.token_text(vocab.eos()),
        build=library.build(),
        device=in_words(config.device, is_gpu=loaded.is_gpu),
        defaults=config.sampling,
        saves_slots=bool(config.slot_save_path) and bool(lib.llama_get_memory(context)),
        n_lora=len(config.lora),
        can_generate=can_generate(model, context),
        embd_normalize=config.embd_normalize,
        fim_missing=vocabulary.special.missing_for_infill(),
        suffix_first=config.spm_infill,
        **_of_chats(config, model),
        **_of_file(model),
    )


def with_media(card: ModelCard, media: MediaReader | None) -> ModelCard:
    """Add which images and sounds it takes."""
    if media is None:
        return card
    return replace(
        card, media_marker=media.marker, has_vision=media.has_vision, has_audio=media.has_audio
    )


def with_embeddings(card: ModelCard, embedder: LlamaEmbedder | None) -> ModelCard:
    """Add what embeddings it makes."""
    if embedder is None:
        return card
    return replace(card, has_embeddings=True, pooling=embedder.pooling, n_embd_out=embedder.n_embd)


def _of_file(model: Any) -> dict[str, Any]:
    """Return the fields about the model's weights."""
    return {
        "n_embd": int(lib.llama_model_n_embd(model)),
        "n_params": int(lib.llama_model_n_params(model)),
        "size": int(lib.llama_model_size(model)),
        "ftype": _text(lib.llama_ftype_name(lib.llama_model_ftype(model))),
    }


def _of_chats(config: WorkerConfig, model: Any) -> dict[str, Any]:
    """Return the fields about chats."""
    return {
        "chat_template": _chat_template(config, model),
        "reasoning_format": config.reasoning_format,
        "template_kwargs": config.chat_variables,
        "jinja": config.jinja,
        "parses_chats": not config.skip_chat_parsing,
        "prefill_assistant": config.prefill_assistant,
    }


def _text(value: Any) -> str:
    return value.decode(errors="replace") if value else ""


def _chat_template(config: WorkerConfig, model: Any) -> str:
    """Return the template; raises `ConfigError` for one that no gateway would take."""
    found = config.chat_template or _text(lib.llama_model_chat_template(model, None))
    if len(found) > _LONGEST_TEMPLATE:
        have = f"{len(found)} characters, and at most {_LONGEST_TEMPLATE} are possible"
        raise ConfigError(f"the chat template of {config.model} has {have}: --chat-template")
    return found
