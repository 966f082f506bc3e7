"""Judges whether a model's file can be used."""

from worker.doctor.finding import Finding, fail, mib, ok, warn
from worker.files.gguf_header import Header

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


def not_here(source: str) -> Finding:
    """Tell of a model that only the start would download."""
    remedy = "fetch it (`llamapool pull`, or start once) and run this again"
    return warn(MODEL, f"{source} is not on this host: neither file nor memory was checked", remedy)
