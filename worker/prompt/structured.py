"""Structured output: the schema of a task or of a worker, as the grammar that texts must match."""

from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from protocol.wire.messages import Generate


def with_grammar(message: "Generate") -> "Generate":
    """Return the task with its schema as a grammar; raises `InvalidRequest` naming the field.

    Chats build theirs in `worker.prompt.chat`: reasoning may precede the answer, and a code
    fence may enclose it.
    """
    if message.schema is None or message.chat is not None:
        return message
    from worker.grammar.json_schema.schema import text_to_gbnf

    grammar = text_to_gbnf(message.schema, param="json_schema")
    return replace(message, params=replace(message.params, grammar=grammar))


def constrained(worker: WorkerConfig) -> WorkerConfig:
    """Return the worker with its schema as the default grammar; raises `ConfigError`."""
    if not worker.json_schema:
        return worker
    # The supervisor resolves workers too; it needs the grammar's modules for such a one only.
    from worker.grammar.json_schema.schema import text_to_gbnf

    try:
        grammar = text_to_gbnf(worker.json_schema)
    except InvalidRequest as error:
        raise ConfigError(f"json_schema: {error.message}") from error
    if worker.sampling.grammar not in ("", grammar):
        raise ConfigError("either json_schema or sampling.grammar can be set, but not both")
    return replace(worker, sampling=replace(worker.sampling, grammar=grammar))
