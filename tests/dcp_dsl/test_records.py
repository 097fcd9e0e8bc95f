"""Records check their arrays against the shapes that stand in the types of their fields."""

import re
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated

import numpy as np
import pytest

from dcp_dsl.arrays import Bytes, Ints, Record, element_type, expand, order_by, readonly


@dataclass(frozen=True, slots=True)
class Table(Record):
    row_ptr: Annotated[Ints, "N+1"]
    value: Annotated[Ints, "N"]
    pair: Annotated[Bytes, "N", 2]
    square: Annotated[Ints | None, "R", "R"] = None

    def _check(self) -> None:
        if self.value.max(initial=0) > 9:
            raise ValueError("too large")


def test_arrays_are_converted_copied_and_read_only():
    given = np.array([1, 2])
    table = Table([0, 1, 2], given, [[0, 1], [1, 0]])
    given[0] = 7
    assert table.value.tolist() == [1, 2]
    assert table.pair.dtype == np.uint8
    assert not any(a.flags.writeable for a in (table.row_ptr, table.value, table.pair))
    assert table.square is None
    assert Table(table.row_ptr, table.value, table.pair).value is table.value


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (([0, 1, 2], [1], [[0, 1]]), r"Table.value: expected shape \(2,\), got \(1,\)"),
        (([0, 1], [1], [[0, 1, 1]]), r"Table.pair: expected shape \(1, 2\), got \(1, 3\)"),
        (([0, 1], [[1]], [[0, 1]]), r"Table.value: expected shape \(1,\), got \(1, 1\)"),
        (([0, 1], [1], [[0, 300]]), r"Table.pair: values of int64 do not fit into uint8"),
        (([0, 1], [1], [[0, 1]], [[1], [2]]), "Table.square: expected lengths"),
        (([0, 1], [10], [[0, 1]]), "too large"),
    ],
)
def test_a_wrong_array_is_refused_by_name(columns, said):
    with pytest.raises(ValueError, match=said):
        Table(*columns)


def test_the_types_of_arrays_are_read_as_every_numpy_writes_them():
    as_of_2_5 = GenericAlias(list, (np.int32,))  # an alias whose only argument is the element
    as_before = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    assert element_type(as_of_2_5) is element_type(as_before) is np.int32


@pytest.mark.parametrize("largest", [1, 3, 2**31, 2**62])
@pytest.mark.parametrize("rows", [0, 1, 2, 50])
def test_rows_are_ordered_by_their_keys_and_then_by_their_place(largest, rows):
    """In one number where all keys of a row fit into it, else key by key."""
    rng = np.random.default_rng(rows)
    flags = rng.integers(0, 2, rows).astype(bool)
    keys = flags, rng.integers(0, largest + 1, rows), rng.integers(0, 3, rows).astype(np.int32)
    expected = sorted(range(rows), key=lambda row: [int(key[row]) for key in keys])
    assert order_by(*keys).tolist() == expected
    for key in keys:
        assert order_by(key).tolist() == np.argsort(key, kind="stable").tolist()


def test_runs_are_written_out():
    first, counts = np.array([5, 0, 7, 2]), np.array([2, 0, 1, 3])
    row, value = expand(first, counts)
    assert row.tolist() == [0, 0, 2, 3, 3, 3]
    assert value.tolist() == [5, 6, 7, 2, 3, 4]
    assert [part.tolist() for part in expand(1, counts[:1])] == [[0, 0], [1, 2]]


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "said"),
    [
        ([1, 2], np.int32, (3, None), r"expected shape (3, *), got (2,)"),
        ([[1, 2]], np.int32, (None, 3), r"expected shape (*, 3), got (1, 2)"),
        ([0.5], np.int64, (1,), "values of float64 do not fit into int64"),
        ([-1], np.uint8, (None,), "values of int64 do not fit into uint8"),
        ([2.0, 3.0], np.int64, (None,), None),
    ],
)
def test_an_array_of_another_shape_or_type_is_refused_or_converted(values, dtype, shape, said):
    if said is None:
        assert readonly("x", values, dtype, shape).dtype == dtype
        return
    with pytest.raises(ValueError, match=f"^x: {re.escape(said)}$"):
        readonly("x", values, dtype, shape)
