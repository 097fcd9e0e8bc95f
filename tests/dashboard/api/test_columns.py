import json
import struct

import numpy as np
import pytest

from dcp_dashboard.api.encoding import decode, encode, narrow

COLUMNS = {
    "bytes": np.arange(5, dtype=np.uint8),
    "shorts": np.array([1, 65535], np.uint16),
    "signed": np.array([-1, 2, 3], np.int32),
    "sizes": np.array([2.0**40]),
    "none": np.array([], np.uint32),
}


def test_columns_come_back_as_they_were():
    header, columns = decode(encode("x/1", {"names": ["ä", "b"]}, COLUMNS))
    assert header["names"] == ["ä", "b"]
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: column.tolist() for name, column in COLUMNS.items()
    }


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "abcdefg"])
def test_layout_is_as_documented_whatever_the_length_of_the_header(text):
    payload = encode("x/1", {"text": text}, COLUMNS)
    (size,) = struct.unpack_from("<I", payload, 4)
    assert payload[:4] == b"DCPC"
    assert (8 + size) % 8 == 0
    for column in json.loads(payload[8 : 8 + size])["columns"]:
        assert column["offset"] % 8 == 0
    assert payload[8 + size : 8 + size + 5] == bytes(range(5))


def test_element_types_that_a_browser_lacks_are_refused():
    with pytest.raises(ValueError, match=r"column 'a': expected one of .*, got i8"):
        encode("x/1", {}, {"a": np.array([1], np.int64)})


def test_something_else_is_not_decoded():
    with pytest.raises(ValueError, match="expected a payload that begins with"):
        decode(b"PK\3\4" + bytes(20))


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(255, "u1"), (256, "u2"), (65535, "u2"), (65536, "u4"), (2**32 - 1, "u4"), (2**32, "f8")],
)
def test_narrow_keeps_every_value(largest, dtype):
    narrowed = narrow(np.array([0, largest]))
    assert (narrowed.dtype.str[1:], int(narrowed[1])) == (dtype, largest)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([-(2**15), 2**15 - 1], "i2"), ([-(2**15) - 1], "i4"), ([-1, 2**15], "i4"), ([], "u1")],
)
def test_signed_numbers_take_two_bytes_if_all_fit(values, dtype):
    column = narrow(np.array(values, np.int64))
    assert column.dtype.str[1:] == dtype
    assert column.tolist() == values
