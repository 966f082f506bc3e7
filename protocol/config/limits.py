"""What a request may hold at most: one table, `[gateway.limits]` of a configuration file.

`gateway/api/fields/tables.py` says which field is held against which of them.
"""

from dataclasses import dataclass

from protocol.wire.schema import param


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """Bounds of a request; whatever is beyond them is a 4xx that names the field."""

    connections: int = param(
        0,
        "Open connections; 0 is as many as the process may open descriptors, less 128.",
        low=0,
        high=1_000_000,
    )
    head_s: float = param(
        10.0, "Time for the head of a request, from its first byte; at most `timeout_s`.", low=0.1
    )
    headers: int = param(100, "Number of headers.", low=8, high=1000)
    header_kib: int = param(32, "Size of all headers.", low=4, high=32)
    bodies_mib: int = param(
        512, "Size of the bodies of all requests that are not answered.", low=1, high=1_000_000
    )
    body_patience_s: float = param(
        30.0, "Time for a body, and a second more for each MiB of it.", low=0.1
    )
    send_timeout_s: float = param(
        30.0, "Longest time that a client reads nothing, its buffers being full.", low=0.1
    )
    depth: int = param(128, "Nesting of a body.", low=8, high=256)
    values: int = param(
        500_000,
        "Values of a body: its commas and brackets, and ten for each name of an object.",
        low=1000,
        high=100_000_000,
    )
    text_kib: int = param(
        1024, "Text of a prompt, where the context would allow less.", low=1, high=1_000_000
    )
    tokens: int = param(
        131_072, "Tokens of a prompt, where the context would allow less.", low=1, high=100_000_000
    )
    inputs: int = param(8192, "Prompts, texts or documents of a request.", low=1, high=1_000_000)
    messages: int = param(4096, "Messages of a dialog.", low=1, high=1_000_000)
    stops: int = param(64, "Stop strings.", low=1, high=128)
    stop_chars: int = param(256, "Length of a stop string.", low=1, high=1024)
    biases: int = param(8192, "Entries of `logit_bias`.", low=1, high=8192)
    grammar_kib: int = param(64, "Size of a grammar.", low=1, high=256)
    schema_kib: int = param(512, "Size of a JSON schema.", low=1, high=512)
    schema_depth: int = param(64, "Nesting of a JSON schema.", low=1, high=100)
    template_kib: int = param(64, "Size of the variables of a chat template.", low=1, high=16384)
    tools: int = param(128, "Tools of a request.", low=1, high=1024)
    images: int = param(16, "Images and sounds of a request.", low=0, high=64)
    image_mib: int = param(20, "Size of one of them, written as base64.", low=1, high=1024)
    fetch_s: float = param(10.0, "Time to fetch one that is only named.", low=0.1, high=600)
