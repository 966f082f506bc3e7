"""Judges whether a model's file can be used."""

from collections.abc import Iterator

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError
from protocol.wire.facts import ModelCard
from worker.doctor.finding import Finding, fail, mib, ok, warn
from worker.files.gguf_header import Header
from worker.prompt.chat.template import ChatTemplate
from worker.prompt.templates.table import BUILT_IN

MODEL = "model"


def check_model(path: str, header: Header) -> Finding:
    """Judge whether a file is a model that llama.cpp can read."""
    if header.fault:
        remedy = "fetch it again: compare its size and checksum with the source's"
        return fail(MODEL, f"{path} is not a usable GGUF file: {header.fault}", remedy)
    what = header.values.get("general.architecture", "unknown architecture")
    name = header.values.get("general.name", "")
    text = f"{path}: {what} {name}, {header.n_tensors} tensors, {mib(header.size)}"
    if not header.n_tensors:
        return fail(MODEL, f"{text}: it is a vocabulary without a model", "name the model's file")
    return ok(MODEL, text)


def check_template(worker: WorkerConfig) -> Iterator[Finding]:
    """Judge whether a chat template that is given compiles."""
    source = worker.chat_template
    card = ModelCard(name=worker.alias, path="", n_slots=1, n_ctx=1, n_ctx_total=1)
    try:
        ChatTemplate(BUILT_IN.get(source, source), card)
    except ConfigError as error:
        yield fail(MODEL, f"{worker.name}: {error}", "check --chat-template, --chat-template-file")


def not_here(source: str, *, offline: bool) -> Finding:
    """Tell of a model that only the start would download."""
    if offline:
        text = f"{source} is not on this host, and the network is not used"
        return fail(MODEL, text, "fetch it with `llamapool pull`, or leave out --offline")
    remedy = "fetch it (`llamapool pull`, or start once) and run this again"
    return warn(MODEL, f"{source} is not on this host: neither file nor memory was checked", remedy)
