"""All cases, in the order of the table."""

from tests.faults import clients, disk, network, processes

MATRIX = [*processes.CASES, *network.CASES, *disk.CASES, *clients.CASES]
