"""Reports to gateways of what a worker's prefix cache holds: blocks of prompts, by hash."""

from dataclasses import dataclass

from protocol.wire.messages import Message

BLOCK_BYTES = 8
"""Length of a block's hash in a chain."""
MAX_CHAIN_BLOCKS = 4096
"""About a megabyte of text; of a longer prompt only the beginning is reported."""
MAX_SAID_BLOCKS = 1024
"""Maximum of blocks in one `Cached`, handled in a few milliseconds; a receiver ignores more."""
MAX_CACHED_BLOCKS = 65_536
"""Maximum of blocks that one worker reports: 16 MB of text, four million tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached(Message):
    """Changes of what the worker's prefix cache holds, as runs of blocks (`Generate.chain`).

    A run is the hash of the block before it (zeros at the beginning of a prompt) and then those of
    its own. Blocks are a set: adding one twice, or removing an unknown one, changes nothing.
    """

    added: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
