"""Shared by gateway and workers: messages, codec, parameters, errors, configuration.

Plain data, on the standard library and msgpack; independent of HTTP and of llama.cpp.
"""

WIRE_VERSION = 9
"""Raised whenever an old peer could misread a frame; a `Hello` with another number is refused."""
