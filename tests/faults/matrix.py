"""All cases, in the order of the table."""

from tests.faults.groups import (
    clients,
    disk,
    handshakes,
    http2,
    namespaces,
    network,
    peers,
    processes,
    schema,
)

MATRIX = [
    *processes.CASES,
    *network.CASES,
    *handshakes.CASES,
    *peers.CASES,
    *namespaces.CASES,
    *disk.CASES,
    *clients.CASES,
    *http2.CASES,
    *schema.CASES,
]
