"""Records check their arrays against the shapes that stand in the types of their fields."""

from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated

import numpy as np
import pytest

from dcp_dsl.arrays import Bytes, Ints, Record, element_type


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
