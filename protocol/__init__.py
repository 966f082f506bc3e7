"""What the two sides say to each other: messages, codec, parameters, errors, configuration.

Everything here is plain data over the standard library and msgpack. It knows nothing of HTTP, of
llama.cpp, or of who is at the other end.
"""

WIRE_VERSION = 4
"""Raised whenever an old peer could misread a frame; a `Hello` with another number is refused."""
