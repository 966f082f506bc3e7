"""All cases, in the order of the table."""

from tests.faults import processes

MATRIX = [*processes.CASES]
