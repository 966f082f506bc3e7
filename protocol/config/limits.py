"""Limits of a request: one table, `[gateway.limits]` of a configuration file.

`gateway/api/fields/tables.py` says which request field has which limit.
"""

from dataclasses import dataclass

from protocol.wire.schema import param


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Bounds of a request; one that exceeds them gets a 4xx that names the field."""

    connections: int = param(
        0,
        "Open connections; 0: as many as the process may open files, less 128, but at least 16.",
        low=0,
        high=1_000_000,
    )
    head_s: float = param(
        10.0,
        "Seconds for the request line and headers, from the first byte; never more than "
        "`timeout_s`.",
        low=0.1,
    )
    headers: int = param(100, "Number of headers of a request.", low=8, high=1000)
    header_kib: int = param(
        32, "Size of all headers of a request together, in KiB.", low=4, high=32
    )
    bodies_mib: int = param(
        512,
        "Size of the bodies of all unanswered requests together and their fetched media, in MiB; "
        "of one tenant half.",
        low=1,
        high=1_000_000,
    )
    body_patience_s: float = param(
        30.0, "Seconds for a request body, plus one second for each MiB of it.", low=0.1
    )
    send_timeout_s: float = param(
        30.0,
        "Seconds that a client may take nothing of an answer that waits for it.",
        low=0.1,
    )
    depth: int = param(128, "Depth of nested arrays and objects in a body.", low=8, high=256)
    values: int = param(
        500_000,
        "JSON values of a body, counted as commas and brackets, plus ten for each key of an "
        "object.",
        low=1000,
        high=100_000_000,
    )
    text_kib: int = param(
        1024,
        "Text of a prompt, in KiB, where the model's context would allow less.",
        low=1,
        high=1_000_000,
    )
    tokens: int = param(
        131_072,
        "Tokens of a prompt given as token ids, where the model's context would allow less.",
        low=1,
        high=100_000_000,
    )
    inputs: int = param(8192, "Prompts, texts or documents of one request.", low=1, high=1_000_000)
    messages: int = param(4096, "Messages of a chat.", low=1, high=1_000_000)
    stops: int = param(64, "Stop strings of a request.", low=1, high=128)
    stop_chars: int = param(256, "Characters of a stop string.", low=1, high=1024)
    biases: int = param(8192, "Entries of `logit_bias`.", low=1, high=8192)
    grammar_kib: int = param(64, "Size of a grammar, in KiB.", low=1, high=256)
    schema_kib: int = param(512, "Size of a JSON schema, in KiB.", low=1, high=512)
    schema_depth: int = param(64, "Depth of nested objects in a JSON schema.", low=1, high=100)
    template_kib: int = param(
        64, "Size of the variables of a chat template, in KiB.", low=1, high=16384
    )
    tools: int = param(128, "Tools of a request.", low=1, high=1024)
    images: int = param(16, "Images and sounds of a request.", low=0, high=64)
    image_mib: int = param(20, "Size of one image or sound, as base64, in MiB.", low=1, high=1024)
    kept_streams: int = param(
        4096,
        "Streams kept for `GET /v1/stream`, running and ended ones; 0: none is kept.",
        low=0,
        high=1_000_000,
    )
    kept_streams_of_key: int = param(1024, "Of these, those of one API key.", low=1, high=1_000_000)
    kept_mib: int = param(
        128, "Size of all kept streams together, in MiB; of each 4 MiB.", low=1, high=1_000_000
    )
    fetch_s: float = param(
        10.0, "Seconds to fetch one image or sound that is named by URL.", low=0.1, high=600
    )
