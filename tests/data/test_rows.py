"""Rows in pieces are the rows as one array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gptf_gpytorch.data.readers.rows import EntityRows


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), st.booleans(), st.data())
def test_pieces_are_one_array(pieces: list[list[int]], looked_up: bool, data: st.DataObject) -> None:
    table = np.array([3, 0, 4, 2, 1])
    joined = np.array([code for piece in pieces for code in piece], dtype=np.int64)
    rows, expected = EntityRows([np.array(piece, dtype=np.int32) for piece in pieces]), joined
    if looked_up:
        rows, expected = rows.then(table).then(table), table[table[joined]]
    assert len(rows) == len(expected)
    np.testing.assert_array_equal(rows.whole(), expected)
    np.testing.assert_array_equal(rows.used(5), np.isin(np.arange(5), expected))
    start = data.draw(st.integers(0, len(expected)))
    column = np.empty(data.draw(st.integers(0, len(expected) - start)), dtype=np.int32)
    rows.write(column, start)
    np.testing.assert_array_equal(column, expected[start : start + len(column)])
    assert [rows.at(place) for place in range(len(expected))] == expected.tolist()
    wanted = np.array([False, True, False, True, False])
    assert rows.first(wanted) == next((place for place, row in enumerate(expected) if wanted[row]), None)
