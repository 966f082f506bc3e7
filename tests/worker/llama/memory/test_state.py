"""Cells of a sequence's state, as `llama_kv_cache::state_write_meta` writes them."""

import struct

import pytest

from worker.llama.state import are_cells

SEQUENCE = 3


def state(*positions: int) -> bytes:
    cells = b"".join(struct.pack("<3i", position, 1, SEQUENCE) for position in positions)
    return struct.pack("<II", 1, len(positions)) + cells


def state_with_places(*positions: int) -> bytes:
    """Each cell has x, y and the token between its count and its sequence."""
    cells = b"".join(struct.pack("<6i", position, 1, 7, 8, 9, SEQUENCE) for position in positions)
    return struct.pack("<II", 1, len(positions)) + cells


@pytest.mark.parametrize("positions", [(), (0,), (2, 0, 1)])
def test_each_token_has_its_cell(positions: tuple[int, ...]) -> None:
    assert are_cells(state(*positions), len(positions), has_places=False)


@pytest.mark.parametrize("positions", [(-1, 0), (0, 0), (0, 2), (0,), (0, 1, 2)])
def test_other_cells_are_refused(positions: tuple[int, ...]) -> None:
    assert not are_cells(state(*positions), 2, has_places=False)


def test_cells_of_one_image_share_a_position() -> None:
    assert are_cells(state_with_places(0, 1, 1, 1, 5), 6, has_places=True)
    assert not are_cells(state_with_places(0, -1), 2, has_places=True)
    assert not are_cells(state_with_places(0, 2), 2, has_places=True)


def test_a_state_that_ends_early_is_refused() -> None:
    assert not are_cells(state(0, 1)[:-1], 2, has_places=False)
    assert not are_cells(b"\x01", 0, has_places=False)


def test_cells_of_a_layout_that_is_not_known_are_left_to_llama_cpp() -> None:
    """A model whose rope has one position may keep the token with each cell (`has_cell_ext`)."""
    assert are_cells(state_with_places(0, 1), 2, has_places=False)
