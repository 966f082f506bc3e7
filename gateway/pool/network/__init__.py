"""The ROUTER and the connections of workers: keys, handshakes, names, order of frames, liveness.

Imported by the transport.
"""
