"""All cases, in the order of the table."""

from tests.faults import clients, disk, namespaces, network, processes

MATRIX = [
    *processes.CASES,
    *network.CASES,
    *namespaces.CASES,
    *disk.CASES,
    *clients.CASES,
]
